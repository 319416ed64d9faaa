"""Pictures of profiles, plans and frontiers. matplotlib is an extra, imported only when something is drawn. No torch.

A profile and a plan, or a frontier, come in, a figure goes out. Open `memory.py` first, then `frontier.py`.

course.py  a plan's timeline in seconds instead of ticks
figure.py  figures, colours, notes and axes, for all of them
"""
