"""Checks planned steps against plain ones, and measures them.

A model and its batch come in, a verification or a measurement goes out.
Open `verify/run.py` first; `measure.py` is the referee, which knows no profile and no plan.
"""
