"""First contact with a GPU: six stages, one command; ``make gpu``, or ``python -m benchmarks.gpu``.

__main__.py    the command
supervise.py   a stage in a process of its own, which may die or hang
rows.py        what is written down, as it comes
machine.py     where it runs, and why it would not
models.py      the models, in two sizes
steps.py       one step: predicted, measured, timed in pairs
stages.py      the six stages: which rows they have
smoke.py, gpu_tests.py, caps.py, profiles.py, frontier.py, published.py    stage 1 to 6
methods.py     how others train in less memory, for stage 5
report.py      tables; ``python -m benchmarks.gpu.report``

Of autockpt only what is public is used.
"""
