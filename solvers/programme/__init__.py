"""The integer programme: the cheapest plan, with a bound on how much cheaper another choice could be.

model.py  the programme in symbols, and in PuLP
ilp.py    the exact solver, which searches in it
highs.py  HiGHS, called through PuLP
"""
