"""Recording a step of a structure that is known: one watched step, for its bytes; seconds grow as the bytes do."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..._data.profile import Profile
from ..._data.tables import FunctionTable, OpTable
from ..._record import refusals
from ..._record.recorder import record_step
from ..._record.step import TrainingStep
from ..growth import same_structure, shared_out

AGAIN = (
    "what each operator does was recorded at another size of the batch; its seconds are those, scaled by the bytes "
    "that it moves"
)


def record_again(step: TrainingStep, known: Profile) -> Profile | None:
    """Record a step that does what a recorded one did, on a batch of another size; see `record_step`.

    Args:
        step: the step, of the same model.
        known: the other step, on the same kind of batch.

    Returns:
        Its profile; every number of bytes is this run's. None if it is no such step: something is called, allocated,
        saved or freed in another order; or it changes parameters.

    Raises:
        ProfilingError: as for `record_step`.
        Exception: whatever the model's own forward raises.

    O(size of a profile) beside the run.
    """
    if any(each.reason == refusals.CHANGES_PARAMETER for each in known.refusals):
        return None
    found = record_step(step, timed=False)
    found = msgspec.structs.replace(
        found,
        static=msgspec.structs.replace(
            found.static, optimizer_bytes=known.static.optimizer_bytes, other_bytes=known.static.other_bytes
        ),
        optimizer=known.optimizer,
        optimizer_step_bytes=known.optimizer_step_bytes,
    )
    return None if same_structure(known, found) else _with_seconds(found, known)


def _with_seconds(found: Profile, known: Profile) -> Profile:
    """A profile with the seconds of a known one, scaled by the bytes that functions and operators move."""
    before, now = known.tensors.bytes, found.tensors.bytes

    def scaled(table: FunctionTable | OpTable) -> tuple[float, ...]:
        return tuple(map(grown, table.seconds, table.reads, table.makes))

    def grown(seconds: float, reads: Sequence[int], makes: Sequence[int]) -> float:
        moved = sum(before[tensor] for tensor in (*reads, *makes))
        return seconds * sum(now[tensor] for tensor in (*reads, *makes)) / moved if moved else seconds

    functions = msgspec.structs.replace(found.functions, seconds=scaled(known.functions))
    was = sum(known.functions.seconds)
    growth = sum(functions.seconds) / was if was else 1.0
    calls = tuple(
        msgspec.structs.replace(
            call, enter_seconds=other.enter_seconds * growth, exit_seconds=other.exit_seconds * growth
        )
        for call, other in zip(found.calls, known.calls, strict=True)
    )
    return msgspec.structs.replace(
        found,
        plain_seconds=known.plain_seconds * growth,
        calls=calls,
        functions=functions,
        ops=shared_out(msgspec.structs.replace(found.ops, seconds=scaled(known.ops)), functions),
        saves=msgspec.structs.replace(found.saves, seconds=tuple(each * growth for each in known.saves.seconds)),
        notes=(*found.notes, AGAIN),
    )
