"""Decides which plan a model trains under, step by step.

A budget, or a plan, comes in; the model trains under a plan. Open `apply.py` first.

    a forward ──▶ governor ── state, what begins ──▶ machine ── decision ──▶ starter ──▶ the step that is under way
                     ▲                                                                            │
                     └────── next state ◀── machine ◀── review ◀── what was seen of it ◀──────────┘

apply.py      `apply`, `remove`, `plan_of`
request.py    what a user asked for, if a plan is to be made
given.py      a plan that the user gives, and the argument `offload`
governor.py   runs each forward under what was decided; the one place that holds the state
starter.py    starts a step as was decided
review.py     looks at a step that begins, and at one that is over
step.py       the step that is under way, and what a governor asks of its runner
runners.py    runners of steps: spilled, timed or recorded without a plan, or under one
plans.py      makes plans for the kinds of steps that were recorded
evaluations.py which forwards belong to a training step: those that a backward follows
ranks/        the same with other processes that train the model, and in stages of a pipeline

Beside them `_train/batches` says what a kind of step is.

deciding/   what is known of steps and plans, and what follows from it: frozen data, pure functions
batches/     what a batch looks like, and a kind of step
messages/    what somebody who trains is told
"""
