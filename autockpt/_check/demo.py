"""The demo: a small GPT-2, verified inside half of its plain peak, and then trained there and plain."""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from .. import apply, profile, remove, solve
from .._data.errors import MissingExtra
from .._data.plan import Plan
from .verify import Verification, verify

# Sizes for two CPU cores: activations several times the parameters, a step well below a second.
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 192, 6, 1024
BATCH, TOKENS = 4, 128
STEPS = 3  # compared, and trained

Inputs = dict[str, torch.Tensor]


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo found: the verification, and whether training ends with the same weights."""

    verification: Verification
    trained_steps: int
    same_weights: bool

    @property
    def failures(self) -> tuple[str, ...]:
        """What should hold and does not, in words."""
        found = self.verification
        failures: list[str] = []
        if found.verdict in ("different", "nothing recomputed"):
            failures.append(found.verdict)
        if (found.measured_peak_bytes or 0) > (found.budget_bytes or 0):
            failures.append(f"the measured peak, {found.measured_peak_bytes:,} bytes, exceeds the budget")
        if not self.same_weights and found.repeatable:
            failures.append("the trained weights differ from those of plain training")
        return tuple(failures)


def run() -> DemoReport:
    """Verify a plan for half of the plain peak, and train plain and planned from the same weights and seeds.

    Raises:
        MissingExtra: transformers is not installed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for one another on a busy machine make seconds meaningless
    try:
        model, inputs = build()
        recorded = profile(model, inputs)
        plan = solve(recorded, recorded.plain_peak_bytes // 2)
        found = verify(model, inputs, plan=plan, steps=STEPS)
        plain, planned = _trained(model, inputs, Plan()), _trained(model, inputs, plan)
        same = all(torch.equal(one, other) for one, other in zip(plain, planned, strict=True))
        return DemoReport(verification=found, trained_steps=STEPS, same_weights=same)
    finally:
        torch.set_num_threads(threads)


def build() -> tuple[nn.Module, Inputs]:
    """Make a GPT-2 with random weights and dropout, and a batch; on a GPU where there is one."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel, logging
    except ImportError:
        raise MissingExtra(
            "the demo trains a GPT-2 of transformers, which is missing: pip install transformers"
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


def _trained(model: nn.Module, inputs: Inputs, plan: Plan) -> list[torch.Tensor]:
    """Train some steps under `plan`; return losses and weights, and put the weights back."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    apply(model, plan=plan)
    for seed in range(STEPS):
        torch.manual_seed(seed)
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    remove(model)
    found = [*losses, *(value.clone() for value in model.state_dict().values())]
    model.load_state_dict(before)
    return found
