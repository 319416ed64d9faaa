"""The runs that a profile is made of: a whole step, one whose saves wait elsewhere, or a forward that drops them.

A whole step needs a dropping forward beside it, for natural lifetimes. A spilled one shows them by itself, and after a
forward alone the backward is made from its graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from .. import _torch_private as private
from .assemble import Lifetimes, WatchedRun, lifetimes, lifetimes_by_calls, natural_deaths
from .convolutions import transient_bytes
from .spill import Spill
from .spilled_tape import tell_apart
from .step import TrainingStep
from .synthesis import GraphNode, read_graph, synthesise_backward
from .tape import Tape
from .watch import Clock, Watch

SPILLED_TO_FILE = (
    "what forward saved waited in a temporary file while backward ran; the seconds of backward are those of this run"
)
SPILLED_TO_HOST = "what forward saved waited on the host while backward ran; the seconds of backward are estimated"

BACKWARD_OVER_FORWARD = 2.0
"""Seconds of backward over those of forward where it was not timed: two matrix products for each one."""


def run_step(
    step: TrainingStep, tape: Tape, clock: Clock, *, spill: Spill | None = None, brief: bool = False
) -> WatchedRun:
    """Run the whole step, watched, or briefly so (`Watch`); its saves wait in `spill`, if there is one."""
    watch = Watch(step.model, tape, clock, spill=spill, brief=brief)
    existing = [leaf for leaf in step.leaves if leaf.grad is not None]
    with tape:
        hooks = [leaf.register_hook(_Ready(watch, index)) for index, leaf in enumerate(existing)]
        try:
            with watch.watching():
                outputs, scalar = step.forward()
            watch.end_forward()
            gradients = step.gradients(scalar)
            reached = frozenset(i for i, gradient in enumerate(gradients) if gradient is not None)
            copies = _copies_of_shared(gradients)
            watch.end()
            del outputs, scalar, gradients, copies
        finally:
            for leaf, hook in zip(existing, hooks, strict=True):
                hook.remove()
                private.forget_empty_hooks(leaf)
    return WatchedRun(tape.events(), watch.marks, watch.calls, watch.functions, reached)


def run_forward(step: TrainingStep, tape: Tape, clock: Clock) -> tuple[WatchedRun, list[GraphNode]]:
    """Run forward, watched, with everything dropped that autograd would save; and read its graph."""
    watch = Watch(step.model, tape, clock, keep_saves=False)
    with tape:
        with watch.watching():
            outputs, scalar = step.forward()
        watch.end_forward()
        graph = read_graph(scalar, step.leaves, watch.layouts)
        watch.end()
        del outputs, scalar
    reached = frozenset(node.leaf for node in graph if node.leaf is not None)
    return WatchedRun(tape.events(), watch.marks, watch.calls, watch.functions, reached), graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A step as it was recorded, before it becomes a profile.

    Attributes:
        mode: how it was recorded.
        run: the step's markers and calls.
        found: its lifetimes.
        natural: natural death of each tensor.
        backward_share: seconds of backward over those of forward; None where whole steps can be timed.
        notes: what could not be seen.
    """

    mode: Literal["real", "forward", "fake"]
    run: WatchedRun
    found: Lifetimes
    natural: list[int]
    backward_share: float | None = None
    notes: tuple[str, ...] = ()


def real_step(run: WatchedRun, dropped: WatchedRun) -> Parts:
    """Combine a whole step with a forward that saved nothing."""
    found = lifetimes(run)
    natural = natural_deaths(run, found, dropped, lifetimes(dropped))
    if natural is not None:
        return Parts(mode="real", run=run, found=found, natural=natural)
    return Parts(
        mode="real",
        run=run,
        found=found,
        natural=lifetimes_by_calls(run, found),
        notes=("two forwards allocated differently: natural lifetimes are taken to be those of the calls",),
    )


def spilled_step(step: TrainingStep, run: WatchedRun, clock: Clock) -> Parts:
    """Take a step whose saves were spilled for the plain step that it stands for."""
    natural, plain = tell_apart(run)
    found = lifetimes(plain)
    deaths = zip(lifetimes(natural).death, found.death, strict=True)
    on_host = step.device.type == "cpu"
    return Parts(
        mode="real",
        run=plain,
        found=found,
        natural=[min(pair) for pair in deaths],
        backward_share=_backward_share(run, clock) if on_host else BACKWARD_OVER_FORWARD,
        notes=(SPILLED_TO_FILE if on_host else SPILLED_TO_HOST,),
    )


def _backward_share(run: WatchedRun, clock: Clock) -> float:
    """Seconds of a run's own backward over those of its forward."""
    stamps = [mark.stamp for mark in run.marks if mark.stamp is not None]
    ends = [mark.stamp for mark in run.marks if mark.kind in ("forward_end", "backward_end")]
    forward, step = clock.seconds([stamps[0], *ends])[1:]
    return (step - forward) / forward


def forward_only(step: TrainingStep, dropped: WatchedRun, graph: list[GraphNode]) -> Parts:
    """Complete a forward by a synthesised backward."""
    convolutions = {node.convolution for node in graph if node.convolution is not None}
    transients = {each: transient_bytes(each, step.device) for each in convolutions}
    exist = [leaf.grad is not None for leaf in step.leaves]
    run, found, natural = synthesise_backward(dropped, graph, exist, transients)
    return Parts(
        mode="forward",
        run=run,
        found=found,
        natural=natural,
        backward_share=BACKWARD_OVER_FORWARD,
        notes=("backward did not run: its memory is synthesised from the autograd graph, its seconds are estimated",),
    )


def _copies_of_shared(gradients: Iterable[torch.Tensor | None]) -> list[torch.Tensor]:
    """Copy gradients that share storage with another's, as a step does that puts each into a ``.grad`` of its own."""
    seen: set[int] = set()
    copies = []
    for gradient in gradients:
        if gradient is not None and gradient.layout == torch.strided:
            address = private.storage_key(gradient)
            if address in seen:
                copies.append(gradient.clone())
            seen.add(address)
    return copies


class _Ready:
    """A gradient hook that marks when a gradient is ready to be added to one that exists already."""

    def __init__(self, watch: Watch, index: int) -> None:
        self._watch, self._index = watch, index

    def __call__(self, gradient: torch.Tensor) -> None:
        self._watch.mark("ready", self._index, keys=(self._watch.key(gradient),))
