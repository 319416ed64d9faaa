"""What may be recomputed inside a block, operator by operator. No torch; `autockpt.solvers` hands out what is public.

dataflow.py   `Dataflow`: units in forward order, the tensors between them, and what a choice of units holds and costs
menu.py       the ways to recompute a block that are worth having
min_cut.py    finds them: the best choice for every price on bytes
bound.py      what any method has to recompute within a budget, over the operators of a whole step
"""
