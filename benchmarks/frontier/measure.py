"""One training step held against the plain one: peak, FLOPs, time, gradients and buffers."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from autockpt._torch import private
from benchmarks.frontier.derive import highest, standard_error
from tests.zoo import Case

__all__ = [
    "Agreement",
    "Outcome",
    "Peak",
    "Times",
    "compare",
    "count_flops",
    "outcome",
    "peak",
    "step_seconds",
    "times",
]

SEED = 7
CLOSE = 1e-3
"""Relative error of gradients below which they are those of the plain step in another rounding."""
WANTED_ERROR = 0.003
"""Standard error of a ratio of times at which no more pairs are timed; where it happens to look small, too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """How high a step stood above the level before it.

    Attributes:
        activation_bytes: with the blocks left out that end as parameters' gradients.
        step_bytes: with all blocks.
    """

    activation_bytes: int
    step_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step computes: its loss, and gradients and buffers by name."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How a step's outcome agrees with the plain one's.

    Attributes:
        gradients: ``equal`` bit for bit, ``close`` or ``wrong``.
        gradient_error: the largest difference in a gradient over the largest element of that gradient (or over a
            thousandth of the largest of all, where that is more: a gradient that is zero but for rounding).
        buffers: the same for buffers.
        loss: the same for the loss; where it is equal and gradients are wrong, backward was not forward's.
    """

    gradients: str
    gradient_error: float
    buffers: str
    loss: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Time of a step over that of the plain step beside it.

    Attributes:
        ratio: median over the pairs.
        quartiles: first and third over the pairs.
        pairs: how many.
        plain_seconds: median of the plain steps.
    """

    ratio: float
    quartiles: tuple[float, float]
    pairs: int
    plain_seconds: float


def peak(case: Case) -> Peak:
    """Run one step under the allocator's own events."""
    case.model.zero_grad()
    gc.collect()
    profiler = private.start_memory_profiler()
    try:
        outputs, loss = case.forward()
        loss.backward()
        del outputs, loss
    finally:
        events = private.stop_memory_profiler(profiler, "cpu")
    gradients = {p.grad.untyped_storage().data_ptr() for p in case.model.parameters() if p.grad is not None}
    case.model.zero_grad()
    kind = _device(case).type
    changes = [(address, change) for address, change, device, _ in events if device == kind]
    return Peak(activation_bytes=highest(changes, gradients), step_bytes=highest(changes, ()))


_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Flops(TorchDispatchMode):
    """Adds up what torch's own table says about every operator; unlike torch's counter, in compiled code too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let code that is already compiled run as it is."""
        return True

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        counted = flop_registry.get(function._overloadpacket)
        if counted is not None:
            self.total += counted(*args, **(kwargs or {}), out_val=out)
        elif function._overloadpacket is _ATTENTION:  # the two that torch's table lacks
            self.total += sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
        elif function._overloadpacket is _ATTENTION_BACKWARD:
            self.total += sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
        return out


def count_flops(case: Case) -> int:
    """Run one step; return its FLOPs."""
    flops = _Flops()
    with flops:
        case.step()
    return flops.total


def times(plain: Case, subject: Case, *, seconds: float, least_pairs: int) -> Times:
    """Time steps of both in turns, now the one first and now the other.

    Args:
        plain: what is never changed.
        subject: what is held against it.
        seconds: of the clock, after which no pair begins once there are `least_pairs`; fewer where `WANTED_ERROR` is
            reached before.
        least_pairs: at least 2, for quartiles.
    """
    for case in (plain, subject):
        case.step()
    pairs: list[tuple[float, float]] = []
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    try:
        while True:
            if len(pairs) % 2:
                own, theirs = step_seconds(plain), step_seconds(subject)
            else:
                theirs, own = step_seconds(subject), step_seconds(plain)
            pairs.append((own, theirs))
            if len(pairs) < least_pairs:
                continue
            first, median, third = statistics.quantiles((theirs / own for own, theirs in pairs), n=4)
            known = standard_error((first, third), len(pairs)) <= WANTED_ERROR
            if known or time.perf_counter() - began >= seconds:
                break
    finally:
        gc.enable()
    return Times(
        ratio=median,
        quartiles=(first, third),
        pairs=len(pairs),
        plain_seconds=statistics.median(own for own, _ in pairs),
    )


def step_seconds(case: Case) -> float:
    """Take one step; return the seconds of the processor that it took, on a GPU those of the clock."""
    on_gpu = _device(case).type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize()
    began = clock()
    outputs, loss = case.forward()
    loss.backward()
    if on_gpu:
        torch.cuda.synchronize()
    ended = clock()
    del outputs, loss
    case.model.zero_grad()
    return ended - began


def _device(case: Case) -> torch.device:
    return next(case.model.parameters()).device


def outcome(case: Case, model: nn.Module, state: Mapping[str, torch.Tensor]) -> Outcome:
    """Run one step from `state`, always with the same seed; `model` is what `case` trains, under its own names."""
    model.load_state_dict(state)
    torch.manual_seed(SEED)
    outputs, loss = case.forward()
    loss.backward()
    del outputs
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad()
    return Outcome(loss=loss.detach(), gradients=gradients, buffers=buffers)


def compare(plain: Outcome, found: Outcome) -> Agreement:
    """Hold one outcome against the plain one."""
    gradients, error = _agreement(plain.gradients, found.gradients)
    return Agreement(
        gradients=gradients,
        gradient_error=error,
        buffers=_agreement(plain.buffers, found.buffers)[0],
        loss=_agreement({"loss": plain.loss}, {"loss": found.loss})[0],
    )


def _agreement(plain: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> tuple[str, float]:
    if plain.keys() != found.keys():
        return "wrong", float("inf")
    if all(torch.equal(value, found[name]) for name, value in plain.items()):
        return "equal", 0.0
    sizes = {name: float(value.abs().max()) for name, value in plain.items() if value.numel()}
    least = 1e-3 * max(sizes.values())
    error = max(float((plain[name] - found[name]).abs().max()) / max(size, least) for name, size in sizes.items())
    return ("close" if error <= CLOSE else "wrong"), error
