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
apply.py      `apply`, `remove`, `plan_of`
request.py    what a user asked for, if a plan is to be made
given.py      a plan that the user gives, and the argument `offload`
governor.py   runs each forward under what was decided
known.py      what is known of one kind of step
plans.py      plans for the kinds of steps that were recorded
alike.py      one plan for several kinds that begin alike
refusing.py   calls that cannot be repeated, written into the profile of the next plan
evaluations.py which forwards belong to a training step: those that a backward follows
early.py      replays that run while a stage of a pipeline waits
surprises.py  what steps do that their plan does not count on
standing.py   what is allocated on a device beside a model and its step
agreement.py  what ranks agree on as a step begins; `_ranks/group.py` carries it
wholes.py     the larger model that contains a module

Beside them `_batches` says what a kind of step is.
"""
