"""A byte budget inside `torch.compile`: what runs again is chosen in the compiler's own graphs.

dry.py        a pass over fake tensors: every joint graph of a step, before anything runs   model + batch -> Traced
reading.py    joint graphs as data                                                          Traced -> JointStep
step.py       operators in order, and the storages between them: open it first
overwritten.py  memory that forward overwrites: who read it does not run again
scratch.py    what kernels hold for themselves, measured
regions.py    parts of forward, and the ways to run them again
problem.py    for the same solvers and the same judge as elsewhere                          JointStep -> Problem
cut.py        hands the choice to torch's own partitioner, and looks at what comes out
plan.py       asks a solver                                                                 JointStep -> CompiledPlan
lowered.py    what inductor's generated code holds under a plan
partition.py  what a backend is given, so that it cuts as a plan says
batches.py    kinds of batches, and what stands beside a step
refusals.py   what is asked of compiled models, and those that no plan is made for
hold.py       `apply` on a compiled model: a plan for each kind of batch

Who does not compile imports none of it.
"""
