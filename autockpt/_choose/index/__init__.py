"""A profile with indexes for fast look-ups, for code that plans from it. No torch.

profile_index.py   `Index`: calls and functions as one tree of nodes, and what each saves, reads and makes
tree.py            that tree
passes.py          the backward passes of the step
whole.py           FSDP2 units that a replay has to gather
products.py        which operators multiply matrices
"""
