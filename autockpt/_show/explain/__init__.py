"""The pages of plans, frontiers, profiles and results, with the JSON that ``autockpt explain --json`` prints.

A document comes in, a `Page` goes out. Open `frontier.py` first, then `plan.py`.

brief.py         the short pages of `solve` and `explain`
profile.py       the page of a profile
fit.py           the page of `fit`
ways.py          the ways to take a step on a device, in a sentence and as a table
report.py        the page of a report
verification.py  the page of a verification
results.py       the pages of smaller results
decisions.py     what a plan decides about each call, and why
tree.py          the module tree, in which calls that look alike share a row
names.py         readable names of calls and segments
chart.py         a memory timeline as a small text chart
common.py        parts that several pages share
"""
