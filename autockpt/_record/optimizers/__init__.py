"""Optimizers: which one is meant, what it holds, and when it steps. A user's optimizer is never run or changed.

memory.py   which optimizer is meant, the bytes of its state and of its step
shadow.py   an optimizer step that changes and computes nothing
steps.py    notices the steps that a user's optimizers take
"""
