"""Calls and functions that users pin.

pins.py            calls that must be kept, or recomputed
matching.py        which calls and functions a pin names
"""
