"""What a step takes: stamps of the recorded step, of others, and of the host.

timed.py        a user's own step, timed
timing.py       forwards and steps of their own, for the seconds
host_speed.py   how slow this machine's host is
host_times.py   what a device's host takes in a step
"""
