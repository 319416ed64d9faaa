"""Records a step as one rank of several has it, in one process: the other ranks are not there.

    a fake process group ─▶ the user's build, which shards ─▶ fakes in the place of its tensors ─▶ `_record` ─▶ Profile

profiling.py  `autockpt.profile`
group.py      the fake process group
rank.py       records a model as one of its ranks
shard.py      FSDP2 over the blocks of a model that shards nothing itself
"""

from __future__ import annotations

from .profiling import profile

__all__ = ["profile"]
