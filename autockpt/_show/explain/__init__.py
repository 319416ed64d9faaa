"""The pages of plans, frontiers, profiles and results, with the JSON that ``autockpt explain --json`` prints.

A document comes in, a `Page` goes out. Open `frontier.py` first, then `plan.py`.
"""
