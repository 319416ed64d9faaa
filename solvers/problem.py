"""What a solver is given and what it returns: frozen data, validated, no torch.

Time is a row of *steps*: forward, then backward. A new step begins where a lifetime that decisions can change begins or
ends. Within a step, only memory that no decision changes is allocated and freed, so the highest level of that
(`Step.base_bytes`) is all that matters. That makes the row short and the model exact.

    call          0        1        2                      (pre-order numbers; a call's subtree is [i, stop))
    step      0   1   2    3   4    5 | 6   7   8   9      forward | backward
    tensor        ├─base─┤ ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒┤           ▒ = only a save keeps it alive
                         free_step            until

A tensor is part of the base until its natural death (`free_step`). From then on it lives only as long as
something holds it: a save whose call is kept, or a chosen candidate that needs it as boundary.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import InvalidProblem


class Status(enum.Enum):
    """How much is known about a solution."""

    OPTIMAL = "optimal"  # no cheaper plan exists among the candidates
    FEASIBLE = "feasible"  # meets the budget; `gap` says how far it may be from the optimum


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One stretch of the training step, in which no lifetime that decisions can change begins or ends.

    Attributes:
        name: where in the step this is, in words for people ("backward of h.3.mlp").
        base_bytes: highest level, within the step, of everything that no decision changes.
    """

    name: str
    base_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a module, or of a torch function by a module's own code, at its place in pre-order.

    Attributes:
        name: qualified name and occurrence, ``h.3.mlp#0``; of a function ``h.3.mlp#0/gelu#0``.
        parent: index of the parent call, -1 for the root, always smaller than the call's own index.
        stop: one past the last call of this call's subtree.
        function: whether a torch function is called. It has no calls inside, and is no block.
    """

    name: str
    parent: int
    stop: int
    function: bool = False


class Save(NamedTuple):
    """Autograd's hold on a tensor up to step `until`, dropped where a candidate covers the `call` that saved it."""

    call: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One storage whose lifetime decisions can change.

    Attributes:
        bytes: size of the storage.
        free_step: first step in which the tensor would be dead if nothing held it.
        saves: what autograd holds it for.
        demand: whether it is no real memory, but the demand that the call which saves it is recomputed.
    """

    bytes: int
    free_step: int
    saves: tuple[Save, ...] = ()
    demand: bool = False


class Hold(NamedTuple):
    """A candidate's hold on a tensor of its boundary, up to step `until`."""

    tensor: int
    until: int


class Addition(NamedTuple):
    """Bytes that exist only because a candidate is chosen, alive in steps ``[start, until)``.

    The replay's own peak, the restored tensors that die one by one, and what a frame holds (generator
    state, buffer snapshots) are all additions.
    """

    bytes: int
    start: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A run of consecutive sibling calls that may be recomputed as one segment.

    Attributes:
        name: for people: ``h.3#0`` or ``h.3#0 … h.5#0``.
        start: index of the first call covered.
        stop: one past the last call covered (subtrees included): two candidates exclude one another
            when their ``[start, stop)`` meet.
        length: number of sibling calls in the run; 1 is a single call.
        recompute_seconds: what choosing it costs per step.
        holds: boundary tensors.
        additions: bytes that choosing it adds.
        partial: whether some of what it covers is kept or skipped all the same, or its replay goes in parts.
        multiplies: whether its replay runs something that multiplies matrices or convolves.
    """

    name: str
    start: int
    stop: int
    length: int
    recompute_seconds: float
    holds: tuple[Hold, ...] = ()
    additions: tuple[Addition, ...] = ()
    partial: bool = False
    multiplies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything a solver knows: one model, one batch shape.

    Attributes:
        steps: the row of steps, in time order.
        calls: calls in pre-order; call 0 is the root.
        tensors: storages whose lifetime decisions can change.
        candidates: what may be recomputed.
        required: calls that every plan must recompute; `solve` binds all solvers to them.

    Raises:
        InvalidProblem: an index, a span, a byte count or a cost contradicts the rest.
    """

    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...] = ()
    candidates: tuple[Candidate, ...] = field(default=())
    required: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n_steps, n_calls, n_tensors = len(self.steps), len(self.calls), len(self.tensors)
        _require(n_steps > 0, "a problem needs at least one step, found none")
        for step in self.steps:
            if step.base_bytes < 0:
                raise InvalidProblem(f"step {step.name!r} has negative base bytes {step.base_bytes}")
        _check_calls(self.calls)
        for i, tensor in enumerate(self.tensors):
            _check_tensor(i, tensor, n_steps, n_calls)
        for required in self.required:
            _require(0 <= required < n_calls, f"call {required} of {n_calls} is required")
        for candidate in self.candidates:
            _check(candidate, n_steps, n_calls, n_tensors)


def _check_calls(calls: Sequence[Call]) -> None:
    """Raise if calls are no tree. Here as below messages are made only then: problems are large, and made often."""
    for i, call in enumerate(calls):
        if not -1 <= call.parent < i < call.stop <= len(calls):
            where = f"call {call.name!r} at {i} has parent {call.parent} and stop {call.stop} of {len(calls)} calls"
            raise InvalidProblem(where)
        if call.parent >= 0 and call.stop > calls[call.parent].stop:
            raise InvalidProblem(f"call {call.name!r} ends at {call.stop}, after its parent")


def _check_tensor(i: int, tensor: Tensor, n_steps: int, n_calls: int) -> None:
    """Raise if a tensor contradicts the rest."""
    if tensor.bytes < 0:
        raise InvalidProblem(f"tensor {i} has negative bytes {tensor.bytes}")
    if not 0 <= tensor.free_step <= n_steps:
        raise InvalidProblem(f"tensor {i} is freed at step {tensor.free_step} of {n_steps}")
    for call, until in tensor.saves:
        if not (0 <= call < n_calls and 0 <= until <= n_steps):
            raise InvalidProblem(f"tensor {i} is saved by call {call} of {n_calls} until step {until} of {n_steps}")


def _check(one: Candidate, n_steps: int, n_calls: int, n_tensors: int) -> None:
    """Raise if a candidate contradicts the rest."""
    where = f"candidate {one.name!r}"
    spans = f"{where} spans [{one.start}, {one.stop}) of {n_calls} calls"
    _require(0 <= one.start < one.stop <= n_calls, spans)
    _require(one.length >= 1, f"{where} is a run of {one.length} calls")
    _require(0 <= one.recompute_seconds < float("inf"), f"{where} costs {one.recompute_seconds} seconds")
    for tensor, until in one.holds:
        if not (0 <= tensor < n_tensors and 0 <= until <= n_steps):
            raise InvalidProblem(f"{where} holds tensor {tensor} of {n_tensors} until step {until} of {n_steps}")
    for n_bytes, start, until in one.additions:
        if not (n_bytes >= 0 and 0 <= start <= until <= n_steps):
            raise InvalidProblem(f"{where} adds {n_bytes} bytes in [{start}, {until}) of {n_steps} steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What a solver chose, with the judge's figures.

    Attributes:
        chosen: indices of the chosen candidates, ascending.
        peak_bytes: predicted peak of the whole step.
        recompute_seconds: predicted extra forward seconds per step.
        status: `Status.OPTIMAL` only where it is proven.
        solver: name of the solver.
        lower_bound_seconds: no plan made of these candidates is cheaper; None if no bound is known.
        notes: what went wrong on the way, in words, such as a failure of HiGHS.
    """

    chosen: tuple[int, ...]
    peak_bytes: int
    recompute_seconds: float
    status: Status
    solver: str
    lower_bound_seconds: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """(cost - proven lower bound) / cost, a ratio; None if no bound is known."""
        if self.lower_bound_seconds is None:
            return None
        missing_seconds = self.recompute_seconds - self.lower_bound_seconds
        return missing_seconds / self.recompute_seconds if missing_seconds > 0 else 0.0


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidProblem(message)
