"""A profile laid out for looking things up, for whoever plans from it. No torch.

profile_index.py   `Index`: calls and functions as one tree of nodes, and what each saves, reads and makes
tree.py            that tree
passes.py          the backward passes of the step
whole.py           units of FSDP2 that a replay has to gather
products.py        which operators multiply matrices
"""
