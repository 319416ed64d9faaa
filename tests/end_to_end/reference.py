"""A model's plain step, measured once, and how a planned step is held against it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from unittest.mock import patch

import torch

import autockpt
from autockpt import Plan, Profile
from tests.end_to_end.clocks import timed_by_bytes
from tests.zoo import Case, build, loss_of

__all__ = ["Outcome", "Reference", "counting_replays", "reference", "storage_bytes", "timeless"]

SEED = 7


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a step leaves behind and that recomputation must not change."""

    tensors: dict[str, torch.Tensor]

    def differences(self, other: Outcome) -> list[str]:
        """Names of what is not bit for bit the same."""
        if self.tensors.keys() != other.tensors.keys():
            return sorted(self.tensors.keys() ^ other.tensors.keys())
        return [name for name, value in self.tensors.items() if not same_bits(value, other.tensors[name])]


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
        gradients = {f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        buffers = {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
        model.zero_grad()
        return Outcome({"loss": loss.detach(), "generator": torch.get_rng_state(), **gradients, **buffers})

    def after_forward_bytes(self) -> int:
        """What a forward leaves alive for backward."""
        kept: list[object] = []
        return autockpt.measure(lambda: kept.extend(self.case.forward()), device="cpu").end_bytes - (
            storage_bytes([*self.case.model.parameters(), *self.case.model.buffers()])
        )


@lru_cache(maxsize=1)  # tests come model by model; two at once would only take memory
def reference(name: str) -> Reference:
    """The reference of a model of the zoo, as `timeless` makes it."""
    return timeless(build(name))


def timeless(case: Case) -> Reference:
    """Return the reference of a case; what is chosen by its profile depends on no clock."""
    found = Reference(case)
    found.profile = timed_by_bytes(found.profile)
    return found


@contextmanager
def counting_replays() -> Iterator[list[int]]:
    """Collect the number of calls of every frame that is replayed."""
    from tests.doors import Frame  # benchmarks use this module with versions that have it elsewhere

    replayed: list[int] = []
    original = Frame.replay

    def replay(frame: Frame) -> None:
        replayed.append(len(frame.calls))
        original(frame)

    with patch.object(Frame, "replay", replay):
        yield replayed


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each once; of wrappers those of what they wrap."""
    whole: list[torch.Tensor] = []
    for tensor in tensors:
        flatten = getattr(tensor, "__tensor_flatten__", None)
        whole += [tensor] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in whole}.values())


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal, their zeros' signs and the bits of what is no number included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))
