"""Comparing replays with their forwards: replayers that see what a forward saves, and refuse what a replay makes else.

checks ─▶ rehearsal, check       one for each frame: which segments are compared in which step
forward   expected, checksum     what is noted of a tensor that is dropped
backward  hidden, unwritten      what a replay may not change; what no kernel has written
findings                         which calls cannot be replayed
"""
