"""Where a replay goes in parts: levels of cuts, and which are worth looking at. No torch, and nothing of the others.

revolve.py  how a run of equal calls goes in parts, for so many boundaries at once
offers.py   which runs of a row of calls are looked at, and with how many boundaries
"""
