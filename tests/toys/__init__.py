"""The modules that tests are made of: small, and each for one thing.

    told.py      what does in one place what a test is about, and small ones made of that
    chains.py    blocks one after the other, and modules inside one another
    hidden.py    objects in which a module can hide state

Whole models stand in tests/zoo.py, what one room trains in its models.py, what fuzzing draws in tests/fuzz.

A test has a class of its own where the class itself is the point: it is pickled or named in a message, a process that
is started has to find it, or the question is what a class holds.
"""
