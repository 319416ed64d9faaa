"""First contact with a GPU: eight stages, one command; ``make gpu``, or ``python -m benchmarks.gpu``.

__main__.py    the command
stages.py      the eight stages: which rows they have, and how long they may take
supervise.py   a stage in processes of its own, which may die or hang
rows.py        what is written down, as it comes
archive.py, summary.py, report.py    what comes back: one archive a stage, a few lines, tables
machine.py     where it runs, and why it would not
fake.py        the tests' fake device, for a try without a GPU
models.py      the models, in two sizes
memory.py, watch.py, steps.py    what a device holds; a loop that is watched; a step predicted, measured, timed in pairs
methods.py     how others train in less memory
first.py                        stage 0: rows of others, for a machine that is lent for ten minutes
events.py, road.py, smoke.py    stage 1: the profiler, the main road, plans that are given
users.py                        stage 2: a cap, equal peaks, the largest batch
kernels.py, gpu_tests.py        stage 3
caps.py, frontier.py            stage 4 and 5
profiles.py, published.py       stage 6

Of autockpt only what is public is used, but in events.py, which looks at recording's own tape, and in clocks.py, which
has what two clocks foretell.
"""
