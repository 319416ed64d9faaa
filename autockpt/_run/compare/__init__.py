"""Comparing replays with their forwards: replayers note what forward saves, and find what a replay makes differently.

checks.py     a replayer for each frame; which segments are compared in which step
rehearsal.py  the replayer of the first replay of a segment
check.py      the replayer of all later ones
verdicts.py   what a device finds, read a step later
expected.py   what is noted of a saved tensor that is dropped
hidden.py     what a replay must not change
unwritten.py  what no kernel has written
findings.py   which calls cannot be replayed
"""
