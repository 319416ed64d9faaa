"""What the user is told during training: warnings, lines on a terminal, and the report on request.

said.py     warnings, each given once
spoken.py   progress, in one line each
account.py  how a model's steps ran so far
report.py   `report`: the account, in ten lines
words.py    what a plan recomputes, in words
kinds.py    what kinds of segments are called: in parts, again inside, moved
unseen.py   notices that a model trains although none of its own training forwards was seen
other_models.py which of several models a loop calls, and which other models train in it under their own budgets
"""
