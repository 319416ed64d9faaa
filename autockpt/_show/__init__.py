"""Shows profiles, plans and frontiers as text, HTML and pictures.

A document comes in, something to read goes out. No other room but the command line imports this one.
Open `explain/plan.py` first.
"""
