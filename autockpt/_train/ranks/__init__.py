"""Starts steps where several processes train one model. Who trains by himself needs none of this.

starter.py    starts each step as the ranks agreed; stages of a pipeline, which cannot wait, raise errors together later
agreement.py  what ranks agree on as a step begins; `_ranks/group.py` carries it
compiled.py   the model inside DistributedDataParallel, where that is compiled as a whole
early.py      replays that run while a stage of a pipeline waits
"""
