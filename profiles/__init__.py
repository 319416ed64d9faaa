"""Recorded profiles of real models, as data; `recipes.py` and ``python -m autockpt.profiles`` record them again."""
