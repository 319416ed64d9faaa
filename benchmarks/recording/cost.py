"""Time recording a step against plain steps, in turns, in one process. Run by `run.py`, by either version's Python."""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

import autockpt


def main(batch: int, tokens: int, pairs: int, threads: int) -> None:
    """Print pairs of CPU seconds: of a plain step, and of recording it."""
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=12, n_embd=256, n_head=8, vocab_size=1024, n_positions=256, use_cache=False)
    model = GPT2LMHeadModel(config).train()
    ids = torch.randint(1024, (batch, tokens))
    kwargs = {"input_ids": ids, "labels": ids}

    def step() -> None:
        outputs = model(**kwargs)
        outputs.loss.backward()
        model.zero_grad()

    step()
    found = []
    for _ in range(pairs):
        plain = seconds(step)
        gc.collect()
        found.append((plain, seconds(lambda: autockpt.profile(model, kwargs)) - seconds(gc.collect)))
    print(json.dumps(found))


def seconds(work: Callable[[], object]) -> float:
    """Return how long the process works for it, whatever else the machine does."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
