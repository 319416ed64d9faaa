"""Which devices hold a training step, with which batch, and what the switches of other libraries would do. No torch.

A profile comes in, rows for a table go out. Open `fit.py` first.

held.py      what one rank of several holds, part by part
sized.py     a recorded step on another batch
timed.py     a profile's seconds on another device
switches.py  what other libraries' switches would do
"""
