"""Shows profiles, plans, frontiers and results as text, HTML and pictures.

A document comes in, something to read goes out. No other room but the command line imports this one.
Open `page.py` first, then `explain/frontier.py`.

page.py    one page: figures, tables and sentences, as text and as HTML
explain/   the pages of plans, frontiers, profiles and results
pictures/  their pictures
"""
