"""Decides which plan a model trains under, step by step.

A budget, or a plan, comes in; the model trains under a plan. Open `apply.py` first.

decision.py   what is decided as a step begins, and by which table
governor.py   what follows from it
step.py       the step that is under way
lessons.py    what follows from one that is over
ways.py       what watches a step that runs under no plan, and where it waits

Beside them: plans.py has the kinds of steps that were recorded, and plans for them; batch.py says what a kind is.
"""
