"""Stashes: where saved tensors wait until backward reads them.

    forward     pack ── the tensor's bytes ──▶ memory or a temporary file (CPU), pinned memory of the host (devices)
    backward    unpack ◀── a new tensor with the same bytes; it is freed when its node is done

base.py          `Stash`: put, get, free
spill.py         what is held instead of a tensor that waits
waiting.py       which storages only autograd graphs would hold
late_writes.py   writes to saved tensors that no version counts
spilled_step.py  a step of the user's whose saved tensors wait
held.py          one stash for several steps
file.py          a temporary file
host.py          memory of the host
overlap.py       the same for what a plan moves; copies overlap with compute
parts.py         which tensors of a recorded step are the same on several ranks, so that each may keep a part
shard.py         a part on each of several ranks that have the same tensor
plan_stash.py    the stash of a plan: which of these it opens, and what it refuses

Steps that are recorded or rehearsed ask `open_stash`. What a plan moves goes through `PlanStash`.

A row is a one-dimensional tensor of bytes.

space/   where the bytes of tensors lie that wait
"""

from __future__ import annotations

import torch

from .._torch import private
from .._torch.devices import device_of
from .base import Stash
from .file import FileStash
from .host import HostStash, MemoryStash
from .space.memory import HostMemory


def open_stash(device: torch.device, *, roomy: bool = False) -> Stash:
    """Open a stash for tensors of a device. It closes when nobody holds it, nor a tensor that waits there.

    Args:
        device: where the tensors are.
        roomy: whether the host has room for all that a plain step holds.

    Raises:
        NoRoom: there is no temporary folder.
    """
    if device_of(device).spills_to_host:
        return HostStash(HostMemory().take, private.empty_pinned_cache)
    return MemoryStash() if roomy else FileStash()
