"""Batches: which ones are alike, and predictions for larger ones than were recorded.

batch.py      describes a batch, as far as plans depend on it
headroom.py   predicts a recorded step on a larger batch
"""
