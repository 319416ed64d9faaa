"""Chooses what to recompute, without torch.

A profile and a goal come in, a plan goes out.
Open `solve.py` first; `candidates/` says what may be recomputed.

by_clocks.py       which plan makes the cheapest step on two clocks, host and device
below.py           replays in parts and inside others, where one level does not reach what is asked
moving.py          what to move off the device, beside what to recompute
frontier.py        what it costs to stay within each of many budgets
early.py           which replays may run before the gradient that their backward begins with
candidates/        what may be recomputed or moved, as a problem for the solvers
predict/   what a plan means for memory: its timeline, its peak, and what no method could go below
pinned/   calls and functions that users pin
index/         a profile laid out for looking things up
replay_cost/   what recomputing some calls holds, restores and costs
dataflow/      what may be recomputed inside a block
cuts/          where replays go in parts
moves/         copies to the host beside the computing
"""
