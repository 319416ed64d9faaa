"""A model's plain step, measured once, and how a planned step is held against it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch

import autockpt
from autockpt import Plan, Profile
from tests.end_to_end.clocks import timed_by_bytes
from tests.twin import Outcome, counting_replays, left_by, storage_bytes
from tests.zoo import Case, build, loss_of

__all__ = ["Outcome", "Reference", "counting_replays", "reference", "storage_bytes", "timeless"]

SEED = 7


@dataclass(slots=True)
class Reference:
    """A case of the zoo with its plain step's profile, peak and outcome."""

    case: Case
    profile: Profile = field(init=False)
    plain_peak_bytes: int = field(init=False)
    plain: Outcome = field(init=False)
    plain_after_forward: int = field(init=False)
    state: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.case.step()  # what is allocated once is allocated now
        self.state = {name: value.clone() for name, value in self.case.model.state_dict().items()}
        self.profile = autockpt.profile(self.case.model, self.case.kwargs, loss=loss_of)
        self.plain_peak_bytes = self.measured_peak()
        self.plain = self.outcome()
        self.plain_after_forward = self.after_forward_bytes()

    @contextmanager
    def under(self, plan: Plan) -> Iterator[None]:
        """Let the model recompute what `plan` says, within the block."""
        autockpt.apply(self.case.model, plan=plan)
        try:
            yield
        finally:
            autockpt.remove(self.case.model)

    @property
    def static_bytes(self) -> int:
        """Parameters, buffers and batch, counted here and not by the recorder."""
        batch = [value for value in self.case.kwargs.values() if isinstance(value, torch.Tensor)]
        return storage_bytes([*self.case.model.parameters(), *self.case.model.buffers(), *batch])

    def measured_peak(self) -> int:
        """Static bytes, and what `autockpt.measure` saw the step add to what was alive."""
        return self.static_bytes + autockpt.measure(self.case.step, device="cpu").step_bytes

    def outcome(self) -> Outcome:
        """Run one step from the same state and seed; return loss, gradients, buffers and generator."""
        model = self.case.model
        model.load_state_dict(self.state)
        torch.manual_seed(SEED)
        outputs, loss = self.case.forward()
        loss.backward()
        del outputs
        left = left_by(model) | {"loss": loss.detach()}
        model.zero_grad()
        return Outcome(left)

    def after_forward_bytes(self) -> int:
        """What a forward leaves alive for backward."""
        kept: list[object] = []
        return autockpt.measure(lambda: kept.extend(self.case.forward()), device="cpu").end_bytes - (
            storage_bytes([*self.case.model.parameters(), *self.case.model.buffers()])
        )


@cache  # a few megabytes each
def reference(name: str) -> Reference:
    """The reference of a model of the zoo in its short form, as `timeless` makes it."""
    return timeless(build(name, short=True))


def timeless(case: Case) -> Reference:
    """Return the reference of a case; what is chosen by its profile depends on no clock."""
    found = Reference(case)
    found.profile = timed_by_bytes(found.profile)
    return found
