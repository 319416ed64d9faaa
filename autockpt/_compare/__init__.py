"""Comparing replays with their forwards: replayers note what forward saves, and find what a replay makes differently.

checks ─▶ rehearsal, check       a replayer for each frame; which segments are compared in which step
forward   expected               what is noted of a saved tensor that is dropped
backward  hidden, unwritten      what a replay must not change; what no kernel has written
findings                         which calls cannot be replayed
"""
