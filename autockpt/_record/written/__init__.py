"""What was written down of a step, and whose bytes it is.

attribute.py    what is written down, and whose bytes each storage is
recorded.py     what was recorded, and its profile
"""
