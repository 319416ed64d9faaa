"""What the recorder and the frames must see the same way in a call.

values.py        arguments and results, taken apart into containers and tensors
names.py         the name of a torch function in plans and profiles
failing.py       errors of the user's own code, told with what it ran on
own_errors.py    errors of our own work around what a model runs, which wait
layout.py        how a tensor's elements lie in memory, and the bytes there
checksum.py      what is kept of a tensor's bytes to compare others with
columns.py       the same on a device, in few kernels
unrepeatable.py  modules in which torch does something that no replay can see
pin_names.py     pins that no plan could honour, refused before any step
roots.py         the models of a step: one, or several that train together

objects/   what the Python objects of a call hold: found, compared, put back
found/           what a call finds as its forward begins, held for its replay
"""
