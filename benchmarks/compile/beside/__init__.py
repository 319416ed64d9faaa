"""A byte budget inside compiled code beside torch's own share of saved bytes, and beside plans of the eager step.

ways.py       the ways to train a model, each built and taken three steps      name -> Ways: rows
run.py        a process a model; every row is stored as it is done
arithmetic.py the lines that a user chooses by, from rows alone                 rows -> Line
report.py     lines and rows as tables
"""
