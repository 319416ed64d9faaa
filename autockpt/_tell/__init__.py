"""What somebody who trains is told: warnings once each, lines on a terminal, and the report when they ask.

said.py     warnings, each once
spoken.py   what goes on, in a line each
account.py  what has become of a model's steps so far
report.py   `report`: the account, in ten lines
company.py  which of several models a loop calls, and which train beside them under budgets of their own
words.py    what a plan recomputes, and what it moves, in words
unseen.py   noticing that a model trains though none of its own training forwards was seen
"""
