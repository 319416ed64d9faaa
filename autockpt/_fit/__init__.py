"""Which devices hold a training step, with which batch, and what the switches that others have would do. No torch.

A profile comes in, rows for a table go out. Open `fit.py` first.
"""
