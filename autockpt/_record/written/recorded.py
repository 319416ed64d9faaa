"""What was recorded of a training step, and its profile."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import torch

from ..._calls.objects.anatomy import Anatomy
from ..._calls.roots import title
from ..._data.profile import Profile
from ..._data.step.host_seconds import HostSeconds
from ..._data.step.tables import Static
from ..._ranks.refuse import COVERS_UNITS, IS_A_UNIT, ON_SEVERAL_RANKS
from ..._torch.devices import Clock, device_of, rounded
from ...solvers.units import format_bytes
from ..aside.own_replays import own_replays
from ..aside.sandbox import compile_notes
from ..optimizers.memory import OptimizerMemory
from ..seconds.host_speed import host_slowdown
from ..seconds.timing import recorded_seconds
from ..tables.flow import Flow
from ..tables.host import host_seconds_of
from ..tables.lifetimes import lifetimes
from ..tables.seconds import Seconds
from ..tables.tables import make_tables
from ..watch.marks import SeenStep
from .attribute import Written, attribute, events_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded step.

    Attributes:
        run: what was seen of the step.
        seconds: its times, as measured by the recorded step itself.
        static: bytes allocated before it, and bytes that it leaves behind, without optimizer state.
        anatomy: which modules the model had as it began.
        reached: which trainable parameters had a gradient when it was over, by index; of a step of our own also which
            inputs, behind them.
        places: the event of the tape that allocated each tensor of its profile; -1 if it stood before the step.
        uncounted_bytes: bytes that were allocated as it began and do not count: a teacher, an average of the weights.
            None if that is not known, or if the device's statistics make them count.
        stood: sizes of tensors that the loop made before its forwards, and that `run` or `static` count: those freed
            in the step, and the arguments of later forwards.
        made: sizes of what the loop allocated after it, before the next step.
    """

    run: SeenStep
    seconds: Seconds
    static: Static
    anatomy: Anatomy
    reached: frozenset[int]
    places: tuple[int, ...] = ()
    uncounted_bytes: int | None = None
    stood: tuple[int, ...] = ()
    made: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        run: SeenStep,
        written: Written,
        clock: Clock,
        *,
        backward: bool,
        counted: Static,
        anatomy: Anatomy,
        reached: frozenset[int],
    ) -> Recorded:
        """Return what was recorded, given all that was written down.

        Args:
            run: what was seen of the step; it gets the events that are of it.
            written: what was written down.
            clock: the clock that made its stamps.
            backward: whether its measured backward is used; see `recorded_seconds`.
            counted: bytes of the model and its batch.
            anatomy: which modules the model had as it began.
            reached: which parameters had a gradient when it was over.
        """
        found = attribute(written)
        run.events = events_of(written, found)
        return cls(
            run=run,
            seconds=recorded_seconds(run, clock, backward=backward),
            static=found.standing(counted),
            anatomy=anatomy,
            reached=reached,
            places=tuple(each.born for each in found.of_step()),
            uncounted_bytes=sum(found.bytes_of("older")),
            stood=tuple(found.bytes_of("loop", "given")),
            made=tuple(found.bytes_of("next")),
        )

    @property
    def operators(self) -> list[tuple[str, str]]:
        """The name of each operator that a replay might run, and the class of the module that called it."""
        calls = self.run.calls
        around = {number for number, call in enumerate(calls) if COVERS_UNITS in call.reasons}
        ops = (op for op in self.run.ops if op.call not in around)
        return [(op.name, calls[op.call].class_name if op.call >= 0 else "") for op in ops]

    @property
    def runs_collectives(self) -> bool:
        """Whether replays of its calls run collectives: they do if functions are given DTensors."""
        return any(function.unreadable == ON_SEVERAL_RANKS for function in self.run.functions)

    @property
    def sharded(self) -> bool:
        """Whether parameters are sharded over ranks, so that no larger step can be predicted."""
        return self.runs_collectives or any(call.alone == IS_A_UNIT for call in self.run.calls)

    @property
    def backwards(self) -> int:
        """How many backward passes it had."""
        return 1 + sum(mark.kind == "backward_again" for mark in self.run.marks.values())

    def uncounted(self) -> str:
        """Say what was allocated as it began and does not count, for the end of a sentence; empty if not known."""
        if self.uncounted_bytes is None:
            return ""
        return f", beside {format_bytes(self.uncounted_bytes)} of tensors that are no part of it and do not count"

    def profile(
        self,
        model: torch.nn.Module,
        device: torch.device,
        seconds: Seconds,
        optimizer: OptimizerMemory,
        *,
        notes: Iterable[str] = (),
        ran: bool = True,
    ) -> Profile:
        """Make the profile.

        Args:
            model: the model.
            device: the device that it trains on.
            seconds: the times of a plain step.
            optimizer: what the optimizers of this step need.
            notes: what could not be seen or put back.
            ran: whether this host ran it, and not on fake tensors.
        """
        run, found, on = self.run, lifetimes(self.run), device_of(device)
        tables = make_tables(Flow(run, found), found, seconds)
        own = own_replays(model, run.regions)
        host = host_seconds_of(seconds, tables["calls"], one_forward=not found.late_forwards())
        if host and (several := _device_notes(model, device)):
            host = HostSeconds(alone=several[0])
        changed = sorted({name for call in tables["calls"] for name in call.buffers})
        return Profile(
            model=title(model),
            mode="measured" if ran else "fake",
            device=on.name,
            torch_version=str(torch.__version__),
            recorded=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            plain_seconds=seconds.plain_seconds,
            host_slowdown=host_slowdown() if ran else None,
            host=host,
            static=msgspec.structs.replace(self.static, optimizer_bytes=optimizer.state_bytes),
            optimizer=optimizer.source,
            optimizer_step_bytes=optimizer.step_bytes,
            ticks=found.ticks,
            forward_ticks=next(found.of_kind("forward_end")).tick,
            late_forwards=found.late_forwards(),
            generator_bytes=on.generator_bytes,
            **tables,
            buffer_bytes={name: rounded(on, model.get_buffer(name).nbytes) for name in changed},
            own_replays=own,
            notes=(*_model_notes(model, device, own), *optimizer.notes, *notes),
        )


def _model_notes(model: torch.nn.Module, device: torch.device, own: str | None) -> list[str]:
    """Say what of the model a plan cannot reach."""
    return [*_device_notes(model, device), *([own] if own else []), *compile_notes(model)]


def _device_notes(model: torch.nn.Module, device: torch.device) -> list[str]:
    """Say which other devices hold parameters: a profile covers one device."""
    others = sorted({str(each.device) for each in model.parameters() if each.device != device})
    if not others:
        return []
    return [f"parameters lie on {', '.join(others)} too, and only what is allocated on {device} is seen"]
