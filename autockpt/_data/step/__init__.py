"""A recorded step: the fields and columns of a profile.

tables.py       its columns, for what there is a lot of
step_record.py  its fields; consistency.py checks that they agree
consistency.py  whether the parts of a profile agree with each other
copies.py       tensors that several ranks have alike
world.py        the other ranks of a step, and what comes from them
host_seconds.py what the host of a device took in a step
"""
