"""What is written down: profiles, plans, goals and errors, and the files that hold them.

Numbers come in, immutable documents go out. Nothing here imports another room; `text/` loads `_show` by name.
Open `profile.py` first, then `plan.py`.

compiled_plan.py  a plan of compiled code
cuts.py         where the replay of a segment goes in parts
goal.py         what is asked of a plan
offload.py      where tensors may wait, and how fast they get there
frontier.py     what every budget costs
timeline.py     the memory of a step under a plan
files.py        what is written to files, and read
shipped.py      the profiles that come with autockpt
errors.py       errors that are raised on purpose

hardware/   devices and hosts: their memory, and how fast they are
step/   a recorded step: the fields and columns of a profile
text/   what people read and write: amounts, documents, lines on a terminal
"""
