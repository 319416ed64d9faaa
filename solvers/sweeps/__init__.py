"""Many budgets for one problem.

frontier.py  what each of them costs
lowest.py    the lowest peak within so many seconds
"""
