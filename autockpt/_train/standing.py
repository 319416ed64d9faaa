"""What is allocated on a device beside a model and its step: other models, averages of weights, data, later batches.

30   allocated as a step begins, by the device's own statistics
26   of that, what the plan counts anyway: the model, its batch, the optimizer's state
 4   the rest. Whoever holds it, it is taken to stay allocated through the step, and counts as other bytes
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from .._batches.batch import Forward, gathered_bytes, gradient_bytes
from .._calls.values import tensors
from .._device import device_of
from .._optimizer.shadow import state_tensors
from .._record.alive import static_bytes, storage_bytes


def standing_beside(begins: Forward, optimizers: Sequence[Optimizer], counted_bytes: int, coming_bytes: int = 0) -> int:
    """Return the bytes that are allocated beside the step that begins; 0 if the device keeps no statistics.

    Args:
        begins: the step's first forward.
        optimizers: the optimizers that train the model. Of their state, what they have made so far is allocated.
        counted_bytes: bytes of what else is allocated and counted already: workspaces, what the step before has left.
        coming_bytes: the least to deduct as optimizer state. The plan counts what LBFGS allocates between two calls of
            its closure as state, and though it is not in the optimizer's state, it may be allocated now.
    """
    device = device_of(begins.device)
    if device.level() is None:
        return 0
    device.wait()  # autograd's thread may still hold the last gradient of the previous step
    level = device.level()
    own_bytes = static_bytes(begins.model, device, tensors(begins.arguments)).total_bytes
    state_bytes = storage_bytes(device, (each for one in optimizers for each in state_tensors(one)))
    state_bytes = max(state_bytes, coming_bytes)
    allocated_bytes = level.allocated_bytes if level is not None else 0
    held_bytes = gradient_bytes(begins.model) + gathered_bytes(begins.model)
    return max(allocated_bytes - own_bytes - state_bytes - held_bytes - counted_bytes, 0)
