"""How slow this machine's host is, beside the one on which the costs of recomputing were measured (`HostCosts`).

A few operators run under saved-tensors hooks that recompute them in backward: Python, hooks and small operators, as in
a replay. Before each round other things are brought into the caches, as the operators of a real model do.
"""

from __future__ import annotations

import functools
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import gelu, linear

from ..._data.text.amounts import LEAST_FACTOR, MOST_FACTOR

REFERENCE_SECONDS = 375e-6
"""What a round took on the host of `rooflines.ON_CPU`, where it was 356 to 394 from hour to hour."""

ROUNDS = 15
"""The fastest counts: on a busy machine it differs by 5 % from run to run, the median by half."""

SWEPT_BYTES = 2**22
"""More than the caches of one core hold."""

TOKENS, WIDTH, LAYERS = 16, 64, 4


@functools.cache
def host_slowdown() -> float | None:
    """Return how many times as long this host takes; measured once in a process, in some 10 ms of the processor.

    None where it cannot be measured: no thread may start, or torch was changed so that the rounds fail.
    """
    # A thread has no modes, hooks, autocast and default device of the user's, and a clock of its own.
    try:
        with ThreadPoolExecutor(1, "autockpt host speed") as alone:
            seconds = alone.submit(_fastest_round).result()
    except RuntimeError:
        return None
    return min(max(seconds / REFERENCE_SECONDS, LEAST_FACTOR), MOST_FACTOR)


def _fastest_round() -> float:
    """Return the seconds of the fastest round."""
    fastest = math.inf
    others = np.zeros(SWEPT_BYTES, np.uint8)
    batch = torch.ones(TOKENS, WIDTH, dtype=torch.float32, device="cpu", requires_grad=True)
    weight = torch.ones(WIDTH, WIDTH, dtype=torch.float32, device="cpu")
    for _ in range(ROUNDS):
        others += 1
        began = time.thread_time()
        _recomputed_step(batch, weight)
        fastest = min(fastest, time.thread_time() - began)
    return fastest


def _recomputed_step(batch: torch.Tensor, weight: torch.Tensor) -> None:
    saved: list[torch.Tensor | None] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        for _ in range(LAYERS):
            x = gelu(linear(x, weight))
        return x

    def pack(tensor: torch.Tensor) -> int:
        saved.append(None)
        return len(saved) - 1

    def unpack(index: int) -> torch.Tensor:
        if saved[index] is None:
            again = iter(range(len(saved)))

            def keep(tensor: torch.Tensor) -> None:
                saved[next(again)] = tensor.detach()

            with torch.enable_grad(), saved_tensors_hooks(keep, lambda _: batch):
                forward(batch.detach().requires_grad_())
        found = saved[index]
        assert found is not None
        return found

    with saved_tensors_hooks(pack, unpack):
        loss = forward(batch).sum()
    torch.autograd.grad(loss, batch)
