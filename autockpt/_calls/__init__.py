"""What the recorder and the frames must see the same way in a call.

values.py        arguments and results, taken apart into containers and tensors
names.py         the name of a torch function in plans and profiles
anatomy.py       which modules a model has, and how that has changed
attributes.py    tensors at plain attributes of modules
watched.py       whether anything reads a tensor for a while
contents.py      what the Python objects around them hold: found, compared, put back
code.py          what code leads to: names, functions behind descriptors
failing.py       errors of the user's own code, told with what it ran on
own_errors.py    errors of our own work around what a model runs, which wait
layout.py        how a tensor's elements lie in memory, and the bytes there
checksum.py      what is kept of a tensor's bytes to compare others with
columns.py       the same on a device, in few kernels
unrepeatable.py  modules in which torch does something that no replay can see
pin_names.py     pins that no plan could honour, refused before any step
put_back.py      reads what objects hold, and puts it back in place
roots.py         the models of a step: one, or several that train together
"""
