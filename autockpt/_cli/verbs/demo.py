"""``autockpt demo``: a small GPT-2, verified inside half of its plain peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._data.errors import MissingExtra
from ..._show.explain.verification import headline
from ..screen import progress
from ..target import require_torch
from ..verb import Result, verb

if TYPE_CHECKING:
    import torch

# Sizes for two CPU cores: activations several times the parameters, a step well below a second.
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 192, 6, 1024
BATCH, TOKENS = 4, 128
STEPS = 3


@verb("autockpt demo", "autockpt demo --json")
def demo() -> Result:
    """Run steps of a 12-layer GPT-2 plain and inside half of its plain peak, and compare all that they make.

    The model has random weights, and dropout is on. It runs on a GPU if there is one, else on the CPU, in under three
    minutes. The exit status is 1 if the planned steps exceed the budget, or if their results differ from the plain
    ones.
    """
    require_torch()
    from ... import profile, solve, verify

    with progress("running a small GPT-2 plain and inside half of its peak"):
        model, inputs = build()
        recorded = profile(model, inputs)
        plan = solve(recorded, recorded.plain_peak_bytes // 2)
        found = verify(model, inputs, plan=plan, steps=STEPS)
    failures = [] if found.verdict in ("exact", "not repeatable") else [headline(found)]
    if (found.measured_peak_bytes or 0) > (plan.budget_bytes or 0):
        failures.append(f"The measured peak, {found.measured_peak_bytes:,} bytes, exceeds the budget")
    return Result({"verification": found}, found._page().text, "; ".join(failures))


def build() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Make a GPT-2 with random weights and dropout, and a batch, on a GPU if there is one; torch gets one thread."""
    import torch

    from ..._torch.devices.present import best_device

    try:
        from transformers import GPT2Config, GPT2LMHeadModel, logging
    except ImportError:
        raise MissingExtra(
            "the demo runs a GPT-2 of transformers, which is missing: pip install transformers"
        ) from None
    logging.set_verbosity_error()  # it warns of token numbers, of which random weights have none
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine make seconds meaningless
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False
    )
    device = best_device()
    model: torch.nn.Module = GPT2LMHeadModel(config).train().to(device)
    batch = torch.randint(VOCABULARY, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1)).to(device)
    return model, {"input_ids": batch, "labels": batch}
