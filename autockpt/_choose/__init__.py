"""Chooses what to recompute, without torch.

A profile and a goal come in, a plan goes out.
Open `solve.py` first; `candidates/` says what may be recomputed.
"""
