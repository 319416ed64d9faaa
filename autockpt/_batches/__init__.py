"""Batches: which ones are alike, and larger ones than were recorded.

batch.py      what a step was given, told apart as far as plans go
headroom.py   a recorded step as one of a larger batch
"""
