"""What lies on several ranks.

gathering.py   whether the parameters of a unit of FSDP2 are gathered, and gathering them
sharded.py     what lies on several ranks: stores, units of FSDP2, stages of pipelines
waits.py       when a schedule of a pipeline begins to wait
world.py       a fake process group, and a model on one of its ranks
"""
