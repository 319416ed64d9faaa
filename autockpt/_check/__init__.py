"""Checks planned steps against plain ones, and measures them.

A model and its batch come in, a verification or a measurement goes out.
Open `verify/run.py` first; `measure.py` is the referee, which knows no profile and no plan.

fits.py       the fastest way to take a step on devices
fitting.py    the largest size whose step fits a budget
max_batch.py  how many samples fit a budget, with which plan
verify/       a planned step against the plain one, bit for bit
"""
