"""What is alive beside the step itself: optimizers that nobody told, and what belongs to others."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
from torch import nn

from ..._check.measure import allocated_bytes
from ..._data.profile import Profile
from ..._data.tables import Static
from ..._record.optimizer import Optimizers, optimizers_of

CACHING_MARGIN = 0.03
"""Share of a budget left to CUDA's allocator, which keeps blocks that fit nothing and rounds what it asks for."""


def optimizers_for(model: nn.Module) -> Sequence[torch.optim.Optimizer]:
    """Return the optimizers that train the model now; empty where there is none yet."""
    gc.collect()  # one that nobody has any more trains nothing
    return optimizers_of(parameter for parameter in model.parameters() if parameter.requires_grad)


def other_bytes(static: Static, optimizer: Optimizers | None, device: torch.device) -> int:
    """Bytes alive on `device` that are none of the step's own: another model, a second batch, what a loop holds.

    Args:
        static: what the step's own parts take, state that optimizers have not made yet included.
        optimizer: whose state that is.
        device: where.
    """
    told = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer or ()
    optimizers = [each for each in told if isinstance(each, torch.optim.Optimizer)]
    made = sum(
        value.nbytes
        for each in optimizers
        for state in each.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.device == device
    )
    return max(allocated_bytes(device) - (static.total_bytes - static.optimizer_bytes + made), 0)


def reserved_margin(profile: Profile) -> float:
    """Share of the budget that the device's allocator reserves beyond what it hands out, a ratio."""
    return 0.0 if profile.device == "cpu" else CACHING_MARGIN
