"""Plans in an instant: by rules of a few lines, and by dynamic programming.

blocks.py        which calls are a model's blocks
baselines.py     the solvers of a few lines
articulation.py  greedy, between cuts where few bytes cross
chain.py         dynamic programming along the calls
instant.py       all of these together, as plans to start from
"""
