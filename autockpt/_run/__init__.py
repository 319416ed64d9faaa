"""Runs a plan on a model.

A plan, or a budget for which one is made, comes in; the user's model, patched, goes out.
Open `apply.py` first; `frames/` says how a segment recomputes.
"""
