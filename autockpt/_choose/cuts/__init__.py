"""Where a replay is cut into parts: levels of cuts, and which cuts are worth a look.

It imports nothing else of this library.

revolve.py   how to cut a run of equal calls into parts, for a given number of boundaries that are held at once
cut_runs.py  which runs of a row of calls are looked at, and with how many boundaries
"""
