"""What recomputing a run of calls holds, restores and costs, in ticks: open `effects` first. No torch.

It predicts. Replays themselves are run by `_run/frames/replay.py`.

effects.py         a run of calls, once; functions inside may be left alone
units.py           what a replay does not run
parts.py           a run whose replay goes in parts, to any depth
inside.py          a run whose replay leaves calls inside it to replays of their own
copies.py          which of two copies of a tensor a member is given
replay_peak.py     how many bytes of what a replay allocates are alive at once
replay_seconds.py  how long a replay takes, and what it gives the host to do
two_clocks.py      how long a step takes whose host launches ahead of its device
"""
