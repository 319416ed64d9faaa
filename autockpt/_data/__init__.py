"""What is written down: profiles, plans, goals and errors, and the files that hold them.

Numbers come in, immutable documents go out. Nothing here imports another room; `document.py` loads `_show` by name.
Open `profile.py` first, then `plan.py`.

step_record.py  its fields; consistency.py checks that they agree
tables.py       its columns, for what there is a lot of
consistency.py  whether the parts of a profile agree with each other
world.py        the other ranks of a step, and what comes from them
copies.py       tensors that several ranks have alike
cuts.py         where the replay of a segment goes in parts
keys.py         the names of calls and functions
goal.py         what is asked of a plan
offload.py      where tensors may wait, and how fast they get there
frontier.py     what every budget costs
timeline.py     the memory of a step under a plan
amounts.py      types of bytes, seconds and factors
files.py        what is written to files, and read
shipped.py      the profiles that come with autockpt
devices.py      devices that people own: memory and what vendors state
paces.py        how fast a host launches and a device computes
rooflines.py    rates of devices, for seconds that nothing has measured
host_seconds.py what the host of a device took in a step
host.py         what the system says of the machine
errors.py       errors that are raised on purpose
door.py         errors come out of the public door without the frames inside
terminal.py     what is said on a terminal where nobody has configured logging
"""
