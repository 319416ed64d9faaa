"""Chooses what to recompute, without torch.

A profile and a goal come in, a plan goes out.
Open `solve.py` first; `candidates/` says what may be recomputed.

by_clocks.py       which plan makes the cheapest step on two clocks, host and device
below.py           replays in parts and inside others, where one level does not reach what is asked
moving.py          what to move off the device, beside what to recompute
pins.py            calls that must be kept, or recomputed
matching.py        which calls and functions a pin names
bound.py           what any method would have to recompute, to hold a plan against
frontier.py        what it costs to stay within each of many budgets
early.py           which replays may run before the gradient that their backward begins with
timeline.py        the predicted memory of a step under a plan
peak_breakdown.py  what the lowest peak consists of, and what would lower it
candidates/        what may be recomputed or moved, as a problem for the solvers
"""
