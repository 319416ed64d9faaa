"""Time the first three steps under a budget against three plain ones, in turns, in one process; planning apart.

    python -m benchmarks.in_place.cost SECONDS

How long planning took is what the library says in its log.
"""

from __future__ import annotations

import copy
import gc
import json
import logging
import re
import sys
import tempfile
import time
import warnings

import torch
from torch import nn

import autockpt
from benchmarks.in_place.worker import outside
from tests.end_to_end.reference import storage_bytes
from tests.zoo import gpt2

SIZES = {0.1: (96, 4, 64), 1.0: (256, 3, 256), 5.0: (256, 15, 256)}
"""Width, batch and tokens, by how many seconds a step takes, about."""

PAIRS = 3

SHARE = 0.6


FILE_BYTES = 2 << 30
"""Written before every step that is timed. A virtual machine takes memory from its host when it is first touched, ten
times slower than it is written later, and gives back what has been free for some seconds: what the cache of files takes
for a recorded step's saves would be the time of the host, and no work of recording."""


def touch_file_cache() -> None:
    """Let the machine's file cache have held something just now."""
    block = bytes(8 << 20)
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(FILE_BYTES // len(block)):
            file.write(block)


def main(seconds: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    said = planning_seconds()
    torch.manual_seed(0)
    width, batch, tokens = SIZES[float(seconds)]
    model = gpt2(n_layer=12, n_embd=width, n_head=8, vocab_size=1024, n_positions=256).train()
    ids = torch.randint(1024, (batch, tokens))
    plain = copy.deepcopy(model)
    train(plain, ids, 2)
    static_bytes = storage_bytes([*plain.parameters(), *plain.buffers(), ids])
    budget_bytes = static_bytes + round(SHARE * autockpt.measure(lambda: train(plain, ids, 1)).step_bytes)
    pairs = []
    for number in range(PAIRS + 1):
        plain = copy.deepcopy(model)
        touch_file_cache()
        plain_seconds = train(plain, ids, 3)
        governed = autockpt.apply(copy.deepcopy(model), budget_bytes)
        said.clear()
        touch_file_cache()
        first_seconds = train(governed, ids, 3)
        del governed
        if number:  # the first pair of a process loads what is loaded once
            planning = sum(said)
            pairs.append(
                {
                    "plain_seconds": plain_seconds,
                    "first_seconds": first_seconds - planning,
                    "planning_seconds": planning,
                }
            )
    print(json.dumps({"size": SIZES[float(seconds)], "budget_bytes": budget_bytes, "pairs": pairs}))


def train(model: nn.Module, ids: torch.Tensor, steps: int) -> float:
    """Train from the first step on; return the seconds of all steps together."""
    gc.collect()
    began = time.perf_counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        outside(model(input_ids=ids)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began


def planning_seconds() -> list[float]:
    """Collect from now on how long each plan took, as the library says it."""
    found: list[float] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.extend(float(each) for each in re.findall(r"(?:planned|solved) in ([\d.]+) s", record.getMessage()))

    logger = logging.getLogger("autockpt")
    logger.addHandler(Listener(logging.INFO))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
