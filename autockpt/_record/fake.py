"""Recording where nothing runs: fake tensors, and the roofline of a named device.

What fake mode cannot see is said in the profile: buffers inside kernels, and that some models run other
operators when their tensors are fake. Fake tensors that a user's own code keeps, where no sandbox reaches, fail when
they are used.
"""

from __future__ import annotations

import functools
import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn, cast

import msgspec
import torch
from torch.utils._pytree import tree_map_only

from .._data.errors import ProfilingError
from .._data.hardware.rooflines import DEFAULT_DEVICE, ROOFLINES, Roofline
from .._data.profile import Profile
from .._data.step.world import World
from .._ranks.fsdp import units
from .._stash import open_stash
from .._stash.spill import Spill, SpilledTensor
from .._torch import private
from .._torch.devices import Clock, planned_device
from .._torch.devices.roofline import work_of
from .alive import alive, static_bytes
from .aside.sandbox import Sandbox
from .aside.switches import one_sequence_a_row
from .optimizers.memory import Chosen, optimizer_memory
from .runs import watch_step
from .seconds.timing import recorded_seconds
from .step import Arguments, TrainingStep, training_step
from .watch.routing import Given, routed_operators, tensors_in
from .watch.storage_tape import StorageTape
from .written.recorded import Recorded

_log = logging.getLogger("autockpt")

NOTES = (
    "nothing ran: buffers inside kernels are not counted, and seconds are those of a roofline",
    "some models run other operators on fake tensors (masks, repeated heads); record a real step once one fits",
)

DROPOUT_OF_A_CPU = (
    "dropout as on a CPU: its masks take two bytes an element, those of a GPU one, and attention with dropout holds "
    "its scores, which that of a GPU does not; a model on a GPU may need less"
)


def profile_fake(step: TrainingStep) -> Profile:
    """Record a step as one of fake tensors, with the seconds of the default device, no optimizer counted."""
    (found,) = profiles_fake(step, (), [None])
    return found


def profiles_fake(step: TrainingStep, optimizers: Sequence[Chosen], devices: Sequence[str | None]) -> list[Profile]:
    """Record a step as one of fake tensors, with the seconds of each device; see `autockpt.profile`.

    The model may be real, on the meta device, or made of fake tensors itself.

    Raises:
        ProfilingError: there is no roofline of that name.
    """
    names = [device or DEFAULT_DEVICE for device in devices]
    for name in names:
        if name not in ROOFLINES:
            raise ProfilingError(f"no roofline for device {name!r}; there are {', '.join(sorted(ROOFLINES))}")
    modes = map(private.fake_mode_of, (*step.model.parameters(), *step.model.buffers()))
    own = next((mode for mode in modes if mode is not None), None)
    mode = own or private.new_fake_mode()
    # Units keep what they gather in, so of a model that has any it is left over as long as that is there.
    with nullcontext() if own or units(step.model) else nothing_left_over(mode):
        return _recorded(step, mode, optimizers, names)


def _recorded(step: TrainingStep, mode: Any, optimizers: Sequence[Chosen], names: Sequence[str]) -> list[Profile]:
    model, inputs = step.model, Arguments(step.args, step.kwargs)
    with Sandbox(model, loss=step.loss, buffers=False) as sandbox:
        counted = static_bytes(model, None, step.inputs(), sandbox.contents, step.held)
        _replace_by_fakes(model, mode)
        batch = tree_map_only(torch.Tensor, lambda tensor: _fake(mode, tensor), inputs)
        on_fakes = training_step(model, batch, step.loss, hooks=step.hooks)
        step = replace(on_fakes, holds_outputs=step.holds_outputs, by_backward=bool(units(model)))
        clock, tape = RooflineClock(*(ROOFLINES[name] for name in names)), StorageTape()
        with mode, clock, one_sequence_a_row(step.args, step.kwargs):
            if step.by_backward:
                step.gradients(step.forward()[1])  # in their first step units set themselves up
            spill = _FakeSpill(open_stash(step.device, roomy=True), step.device, step.inputs())
            recorded = watch_step(step, tape, clock, spill, sandbox, counted=counted, backward=True)
        optimizer = optimizer_memory(optimizers, recorded.reached, planned_device())
        notes, world = (*NOTES, *sandbox.notes()), _world(recorded, tape) if step.by_backward else None
        others = (recorded_seconds(recorded.run, clock.of(place), backward=True) for place in range(1, len(names)))
        found = []
        for name, seconds in zip(names, (recorded.seconds, *others), strict=True):
            profile = recorded.profile(model, step.device, seconds, optimizer, notes=notes, ran=False)
            said = [DROPOUT_OF_A_CPU] if step.device.type == "cpu" and _drops(profile) else []
            said = [*profile.notes, *said]
            found.append(
                msgspec.structs.replace(profile, device=name, samples=step.samples, world=world, notes=tuple(said))
            )
        return found


def _world(recorded: Recorded, tape: StorageTape) -> World:
    """Say which tensors of a step were the collectives' of units."""
    gathered = tuple(number for number, place in enumerate(recorded.places) if place in tape.gathered)
    reduced = tuple(number for number, place in enumerate(recorded.places) if place in tape.reduced - tape.gathered)
    return World(ranks=private.group_size(), way="fsdp2", gathered=gathered, reduced=reduced)


def _drops(profile: Profile) -> bool:
    return any("bernoulli" in op or "dropout" in op for op in profile.ops.name)


class _FakeSpill(Spill):
    """Leaves real tensors where they are, such as targets that the loss has: no step of fakes made them."""

    def take(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        return tensor if private.fake_mode_of(private.local(tensor)) is None else super().take(tensor)


class RooflineClock(Clock, routed_operators):
    """A clock that moves by what each operator would take on a device; a context around the run.

    Of further devices it knows how late it is there at each moment: `of` is their clock.
    """

    def __init__(self, *devices: Roofline) -> None:
        super().__init__(self._on_operator)
        self._devices = devices
        self._now = (0.0,) * len(devices)
        self._course = {0.0: self._now}

    def stamp(self) -> object:
        return self._now[0]

    def of(self, place: int) -> Clock:
        """Return the clock of a device, for what this one has stamped."""
        return _ClockOfAnother({reading: now[place] for reading, now in self._course.items()})

    def _on_operator(self, op: Any, given: Given, run: Callable[[], Any]) -> Any:
        output = run()
        work = work_of(op, given, output, tensors_in((given, output)))
        if work is not None:
            self._now = tuple(now + work.seconds(device) for now, device in zip(self._now, self._devices, strict=True))
            self._course[self._now[0]] = self._now
        return output


class _ClockOfAnother(Clock):
    """Reads the stamps of one device's clock as those of another."""

    def __init__(self, course: Mapping[float, float]) -> None:
        super().__init__()
        self._course = course

    def seconds(self, stamps: list[object]) -> list[float]:
        return super().seconds([self._course[cast("float", stamp)] for stamp in stamps])


def _fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A fake of `tensor`; one on the meta device is taken to be on the CPU."""
    if private.fake_mode_of(tensor) is not None:
        return tensor
    if tensor.device.type != "meta":
        return cast("torch.Tensor", mode.from_tensor(tensor))
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return fake.requires_grad_(tensor.requires_grad)


def _replace_by_fakes(model: torch.nn.Module, mode: Any) -> None:
    """Put fakes in the place of a model's parameters and buffers; the sandbox puts the originals back.

    Not those of units of FSDP2, which are given up.
    """
    if units(model):
        private.replace_tensors(model, lambda tensor: _fake(mode, tensor))
        return
    fakes: dict[int, torch.Tensor] = {}  # a parameter that two modules share stays shared
    for module in model.modules():
        for registry in (module._parameters, module._buffers):
            for name, tensor in registry.items():
                if tensor is None or private.fake_mode_of(tensor) is not None:
                    continue
                if id(tensor) not in fakes:
                    fake = _fake(mode, tensor)
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    fakes[id(tensor)] = torch.nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
                    if tensor.grad is not None:
                        fakes[id(tensor)].grad = _fake(mode, tensor.grad)
                registry[name] = fakes[id(tensor)]  # type: ignore[assignment]


class LeftOver(torch.Tensor):
    """A fake tensor that somebody has kept: it has no values, and every operation on it raises."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise ProfilingError(
            "a cache of the model's own holds a tensor that a fake recording made, which has no values. Empty that "
            "cache, or keep what depends on the size of a batch out of it."
        )

    __torch_dispatch__ = __torch_function__


@contextmanager
def nothing_left_over(mode: Any) -> Iterator[None]:
    """Let nobody compute with the fake tensors of `mode` after the block.

    The `functools` caches that were filled inside the block are emptied, except torch's own. If an error leaves the
    block, the local variables of its traceback, and of the errors before it, are cleared. Fake tensors that are still
    alive after that raise on any use.
    """
    before = {id(cache): (cache, cache.cache_info().misses) for cache in alive(functools._lru_cache_wrapper)}
    try:
        yield
    except Exception as error:
        chain: BaseException | None = error
        while chain is not None:
            traceback.clear_frames(chain.__traceback__)
            chain = chain.__context__
        raise
    finally:
        for cache, misses in before.values():
            if cache.cache_info().misses != misses and not str(cache.__module__).startswith("torch."):
                cache.cache_clear()
        _end_fakes(mode)


def _end_fakes(mode: Any) -> None:
    """Make every live tensor of a fake mode raise on use, and warn if there is any."""
    if not _fakes(mode):
        return
    gc.collect()  # graphs of the recording are reference cycles
    left = _fakes(mode)
    for fake in left:
        fake.__class__ = LeftOver
    if left:
        _log.warning(
            "the model's own code kept %d tensors of a recording in which nothing ran, and which have no values. "
            "Training ends with an error where it reads one.",
            len(left),
        )


def _fakes(mode: Any) -> list[torch.Tensor]:
    return [fake for fake in alive(private.FakeTensor) if fake.fake_mode is mode]
