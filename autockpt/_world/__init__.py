"""One rank of a world that is not there: what a step holds on each of so many ranks, from one process.

    a fake process group ─▶ the user's build, which shards ─▶ fakes in the place of its tensors ─▶ `_record` ─▶ Profile

profiling.py  `autockpt.profile`
group.py      the process group of ranks that are not there
rank.py       a model on one of them, recorded
shard.py      FSDP2 over the blocks of a model that shards nothing itself
"""

from __future__ import annotations

from .profiling import profile

__all__ = ["profile"]
