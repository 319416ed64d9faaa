"""How a training step is taken fastest on devices, with which batch, and what others' switches would do. No torch.

A profile comes in, rows for a table go out. Open `fit.py` first.

ways.py         at once or in microbatches, plain or under a plan: peaks and seconds
accumulated.py  what a later microbatch holds, and what adding gradients takes
steps.py        the step on batches of any size, for any device
sized.py        a recorded step on another batch
timed.py        a profile's seconds on another device
held.py         what one rank of several holds, part by part
switches.py     what other libraries' switches would do
"""
