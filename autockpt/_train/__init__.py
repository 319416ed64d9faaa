"""Decides which plan a model trains under, step by step.

A budget, or a plan, comes in; the model trains under a plan. Open `apply.py` first.

    a forward ──▶ governor ── history, situation ──▶ decision ──▶ acting ──▶ way ──▶ the step that is under way
                     ▲                                                                            │
                     └───── history ◀── lessons ◀── what was seen of it ◀─────────────────────────┘

decision.py   what is decided as a step begins, and by which table
history.py    what it is decided from
acting.py     what follows from it
way.py        what a governor asks of the way a step runs; ways.py and planned.py have four
step.py       the step that is under way
lessons.py    what follows from one that is over

Beside them: plans.py makes plans for the kinds of steps that were recorded; `_batches` says what a kind is.
"""
