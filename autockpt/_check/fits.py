"""`fit`: how a model's step is taken fastest on devices. Records it at each size without running it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._calls.failing import failing
from .._calls.values import tensors
from .._data.errors import ProfilingError
from .._data.goal import refuse_no_number
from .._data.hardware.devices import devices_named, gpu_of
from .._data.profile import Profile
from .._fit.fit import Fits, find_fits
from .._fit.steps import Recorded
from .._record.one_rank.profiling import read_built
from .._record.one_rank.rank import OnRank
from .._record.optimizers.memory import Optimizers
from .._record.recorder import profiles_for
from .._record.step import Arguments, training_step
from .._train.batches.headroom import resized
from ..solvers.units import shown

_log = logging.getLogger("autockpt")


def fit(
    build: Callable[[], Any] | Profile,
    gpus: str | Iterable[str] = (),
    *,
    samples: int | None = None,
    optimizer: Optimizers | None = None,
    offload: str | None = None,
) -> Fits:
    """Find the fastest way to take a training step on each of some devices, and how large a batch they hold.

    Looked at are the whole batch at once and equal microbatches whose gradients add up, each plain and under a plan.
    Nothing runs: steps of fake tensors are recorded, so all figures are predicted.

    Args:
        build: a function without arguments that returns ``(model, inputs)``, ``(model, inputs, loss)`` or ``(model,
            inputs, loss, optimizer)``; or a recorded profile. The first dimension of the batch is that of its samples.
        gpus: names such as ``"rtx4090"``, or amounts of memory such as ``"24GB"``, for the devices that have so much;
            where none has, it is memory without seconds. Empty for all devices that are known.
        samples: of one step of the optimizer; None for those of the batch.
        optimizer: counted instead of what `build` returned, as in `profile`.
        offload: where tensors may wait off the device, for one way more; see `solve`.

    Returns:
        A row for each device, with its ways. `FitRow.best` is the fastest one that fits and trains as the whole batch
        does. Where a step normalizes by statistics of its batch (BatchNorm), microbatches do not.

    Raises:
        AutockptError: a device is not known; says which are near.
        BudgetError: `samples` is no number of samples.
        ProfilingError: `build` fails, or returns something else, or its step cannot be recorded.
        Exception: an error of the build's own, of another class than Python's usual ones.

    Example:
        >>> import autockpt
        >>> (row,) = autockpt.fit(autockpt.Profile.load("resnet-50"), "t4", samples=512).rows
        >>> row.best.kind, row.best.microbatches, row.best.peak_bytes <= row.device.usable_bytes
        ('planned', 1, True)
    """
    names = devices_named([gpus] if isinstance(gpus, str) else gpus)
    if samples is not None:
        refuse_no_number("samples", samples, 1)
    recorded: Recorded | None = None
    if isinstance(build, Profile):
        if optimizer is not None:
            raise ProfilingError("optimizer= goes with a function that builds a model; a profile has counted its own")
        profile = build
    else:
        made = _built(build)
        recorded = recorded_by(OnRank(made.model, made.inputs, made.loss, optimizer or made.optimizer), names)
        profile = first_of(recorded, names)
    if samples is not None and profile.samples is None:
        raise ProfilingError(
            f"samples={samples} is asked for, and nothing says how many the batch has: its first tensor has no "
            "dimension. Give samples to a batch whose first dimension they are"
        )
    sizes = () if samples is None else (samples,)
    return find_fits(profile, names, sizes=sizes, recorded=recorded, offload=offload)


def _built(build: object) -> OnRank:
    if not callable(build):
        raise ProfilingError(f"build is {shown(build)}; give a function that returns (model, inputs), or a profile")
    with failing("build", lambda: "no arguments", "Call it by itself to see why"):
        made = build()
    return read_built(made)


def recorded_by(made: OnRank, gpus: Sequence[str]) -> Recorded:
    """Return a function that records a model's step on batches of several sizes, with the seconds of each device.

    A batch is cut, or repeated, along its first dimension. Where a model does not take that, its step is not recorded
    at that size.
    """
    timed = [gpu for gpu in gpus if gpu_of(gpu).roofline is not None]

    @functools.cache
    def of(size: int | None) -> dict[str | None, Profile] | None:
        devices: list[str | None] = [*timed] or [None]
        try:
            inputs = made.inputs if size is None else _cut(made, size)
            found = profiles_for(made.model, inputs, devices, loss=made.loss, optimizer=made.optimizer)
        except Exception as error:  # whatever a model, or a loss that holds its targets, does with another batch
            if size is None:
                raise
            _log.info("a step of %d samples is worked out from others, since it cannot be recorded: %s", size, error)
            return None
        return dict(zip(devices, found, strict=True))

    def recorded(gpu: str, size: int | None) -> Profile | None:
        found = of(size)
        # Of a device without rates only the memory is asked for, which is that of any profile.
        return None if found is None else found.get(gpu) or next(iter(found.values()))

    return recorded


def first_of(recorded: Recorded, gpus: Sequence[str]) -> Profile:
    """Return the step on the batch as it is, for the first device."""
    found = recorded(gpus[0], None)
    assert found is not None  # it raises where that cannot be recorded
    return found


def _cut(made: OnRank, size: int) -> Arguments:
    """Return a batch of so many samples: tensors with as many as the first one are cut, or repeated."""
    step = training_step(made.model, made.inputs, made.loss)
    given, samples = (step.args, dict(step.kwargs)), step.samples
    shapes = [
        (size, *each.shape[1:]) if each.dim() and each.shape[0] == samples else tuple(each.shape)
        for each in tensors(given)
    ]
    return Arguments(*resized(given, shapes))
