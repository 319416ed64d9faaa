"""The demo: a small GPT-2, verified inside half of its plain peak."""

from __future__ import annotations

import torch
from torch import nn

from .. import profile, solve
from .._data.errors import MissingExtra
from .verify import Verification, verify

# Sizes for two CPU cores: activations several times the parameters, a step well below a second.
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 192, 6, 1024
BATCH, TOKENS = 4, 128
STEPS = 3


def run() -> Verification:
    """Verify a plan for half of the plain peak.

    Raises:
        MissingExtra: transformers is not installed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine make seconds meaningless
    try:
        model, inputs = build()
        recorded = profile(model, inputs)
        return verify(model, inputs, plan=solve(recorded, recorded.plain_peak_bytes // 2), steps=STEPS)
    finally:
        torch.set_num_threads(threads)


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Make a GPT-2 with random weights and dropout, and a batch; on a GPU where there is one."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel, logging
    except ImportError:
        raise MissingExtra(
            "the demo runs a GPT-2 of transformers, which is missing: pip install transformers"
        ) from None
    logging.set_verbosity_error()  # it warns of token numbers, of which random weights have none
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: nn.Module = GPT2LMHeadModel(config).train().to(device)
    batch = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1)).to(device)
    return model, {"input_ids": batch, "labels": batch}
