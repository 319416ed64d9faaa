"""Putting a plan on modules and taking it off again: which forwards get a patch, and what the patch is.

install.py       puts a plan on, and takes it off
targets.py       makes a table of a plan; refuses what cannot be applied
patches.py       patches forwards
copying.py       what pickles and deep copies of a patched module are
modules.py       what a module is to a plan
governed.py      the forward of a root whose plan a governor chooses step by step
installation.py  the plan that is on a model, for whatever chooses it
watching.py      records which calls are replayed
recompute.py     a function that recomputes by itself, without a plan
"""
