"""What may be recomputed inside a block, operator by operator. No torch; `autockpt.solvers` exports the public names.

dataflow.py   `Dataflow`: units in forward order, the tensors between them, and what a choice of units holds and costs
menu.py       the menu of a block: the choices of units to recompute that no other beats
min_cut.py    finds them by minimum cuts: the best choice for every price on bytes
bound.py      a lower bound on what any method recomputes within a budget, over the operators of a whole step
"""
