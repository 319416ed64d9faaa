"""Optimizers: which one is meant, what it holds, and when it steps. None of a user's is ever run or changed.

memory.py   which optimizer is meant, the bytes of its state and of its step
shadow.py   a step of an optimizer that changes and computes nothing
steps.py    hearing of the steps that a user's optimizers take
"""
