"""What stands on a device beside a model and its step: other models, averages of weights, data, batches that come.

30   is allocated as a step begins, by the device's own statistics
26   the plan counts on by itself: the model, its batch, the optimizer's state
4   stands in all of the step, whoever has it, and counts as other bytes
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.optim import Optimizer

from .._batches.batch import Forward, gathered_bytes, gradient_bytes
from .._calls.values import tensors
from .._device import device_of
from .._optimizer.shadow import state_tensors
from .._record.build import static_bytes, storage_bytes


def standing_beside(begins: Forward, optimizers: Sequence[Optimizer], counted_bytes: int, coming_bytes: int = 0) -> int:
    """Return the bytes that stand beside the step that begins; 0 on a device that keeps no statistics.

    Args:
        begins: its first forward.
        optimizers: that train the model, whose state is there as far as they have made it.
        counted_bytes: of what else is there and counts: workspaces of libraries, what the step before has left.
        coming_bytes: that count as the optimizers' state, of which a part is no state, but there already: what is
            between two closures.
    """
    device = device_of(begins.device)
    if device.level() is None:
        return 0
    device.wait()  # autograd's thread holds the last gradient of the step before
    level = device.level()
    own_bytes = static_bytes(begins.model, device, tensors(begins.arguments)).total_bytes
    state_bytes = storage_bytes(device, (each for one in optimizers for each in state_tensors(one)))
    state_bytes = max(state_bytes, coming_bytes)
    allocated_bytes = level.allocated_bytes if level is not None else 0
    held_bytes = gradient_bytes(begins.model) + gathered_bytes(begins.model)
    return max(allocated_bytes - own_bytes - state_bytes - held_bytes - counted_bytes, 0)
