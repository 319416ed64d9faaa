"""Putting a plan on modules and taking it off again: which forwards get a patch, and what stands in it.

targets ─▶ patches ─▶ install      a plan and a model to a table; the patches; all of it together
governed                           the forward of a root whose plan is decided about step by step
installation                       the plan that is on a model, for whoever decides
"""
