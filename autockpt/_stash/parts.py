"""Finds the tensors of a step that are the same on all ranks, so that each may keep a part; and how fast they gather.

The slowest rank's rates count.
"""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from .._data.offload import Offload
from .._data.profile import Profile
from .._data.step.copies import CopiedTensors
from .._ranks import Agree
from .._ranks.layers import sharing_group, with_copies
from .plan_stash import MEASURED_BYTES, with_measured_rates


def with_parts(
    agree: Agree, model: nn.Module, profile: Profile, offload: Offload, device: torch.device, *, runs_collectives: bool
) -> tuple[Profile, Offload]:
    """Return a recorded step with the tensors that are the same on all ranks, and the rates of the slowest rank.

    Args:
        agree: the ranks agree by it.
        model: the model.
        profile: the step on this rank.
        offload: what was asked for: parts on several ranks.
        device: the device that it trains on.
        runs_collectives: whether replays do. If not, each rank plans for itself, so a group could not gather.

    Raises:
        NotApplicable: no ranks share layers of the model; raised on all ranks.
    """
    if not runs_collectives:
        offload = msgspec.structs.replace(offload, group="")
    group = sharing_group(model, offload)
    found = with_copies(profile, agree, group)
    copies = CopiedTensors() if found.copies is None else found.copies
    offload = msgspec.structs.replace(offload, ranks=copies.ranks)
    most_bytes = max((found.tensors.bytes[tensor] for tensor in copies.tensors), default=0)
    if not offload.assumed or not most_bytes:
        return found, offload
    own = with_measured_rates(offload, device, min(most_bytes, MEASURED_BYTES), group=group)
    times = [1 / own.write_rate, 1 / own.read_rate, own.move_seconds]
    write, read, few = agree(times, lambda every: [*map(max, zip(*every, strict=True))])
    return found, msgspec.structs.replace(own, write_rate=1 / write, read_rate=1 / read, move_seconds=few)
