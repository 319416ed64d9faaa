"""Putting a plan on modules and taking it off again: which forwards get a patch, and what the patch is.

targets ─▶ patches ─▶ install      makes a table of a plan; patches forwards; does both
governed                           the forward of a root whose plan a governor chooses step by step
installation                       the plan that is on a model, for whatever chooses it
"""
