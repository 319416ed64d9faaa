"""What the Python objects of a call hold: found, compared, put back.

anatomy.py       which modules a model has, and how that has changed
attributes.py    tensors at plain attributes of modules
code.py          what code leads to: names, functions behind descriptors
contents.py      what the Python objects around them hold: found, compared, put back
kinds.py        kinds of values
put_back.py      reads what objects hold, and puts it back in place
watched.py       whether anything reads a tensor for a while
"""
