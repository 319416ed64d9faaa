"""How a step is recorded if a verb is given a function: the options that say so, and what they do.

By default nothing runs. A plan is asked for, not the seconds of this machine, so a step on fake tensors is enough. It
takes seconds where a real step takes minutes. If a model cannot run on fake tensors, a real step runs after all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click

from .._data.errors import ProfilingError
from .._data.hardware.rooflines import DEFAULT_DEVICE, ROOFLINES
from .._data.profile import Profile
from ..solvers.errors import AutockptError
from . import options
from .ranks import Among, among, profiles_among, world_of
from .ranks import options as rank_options
from .screen import progress, tell
from .target import Target, build, calling, names_function

Mode = Literal["measured", "fake"]

NO_VALUES_IN_FIT = (
    "The model's own code raised it. If a real step runs, that code needs values, which tensors have not where nothing "
    "runs: give fit a profile, that of autockpt profile --mode measured"
)
NO_VALUES = "Nothing runs with --mode fake, so tensors have no values; try --mode measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class HowRecorded:
    """How a step of a user's model is recorded; None for what the user does not say.

    Attributes:
        mode: as in `autockpt.profile`.
        device: the device whose seconds are predicted for a step that does not run.
        optimizer: the name of a class of torch.optim, used instead of what the user's function returned.
        holds_outputs: as in `autockpt.profile`.
        among: the ranks that share the model.
    """

    mode: Mode | None = None
    device: str | None = None
    optimizer: str | None = None
    holds_outputs: bool = True
    among: Among | None = None

    def asked(self) -> dict[str, Any]:
        """Return the values that the user gave, by the names of the options."""
        ranks = {} if self.among is None else {"ranks": self.among.ranks, "shard": self.among.shard}
        return {"mode": self.mode, "device": self.device, "optimizer": self.optimizer, **ranks}

    def refuse_unless(self, recorded: bool) -> None:
        """Refuse options of a recording unless something is `recorded`.

        Raises:
            UsageError: nothing is recorded, and such an option is given.
        """
        for option, value in self.asked().items():
            if value is not None and not recorded:
                raise click.UsageError(f"--{option} goes with file.py:function; a profile was recorded already")


UNASKED = HowRecorded()


def recording(unless_asked: Mode | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb ``--mode``, ``--device``, ``--optimizer``, ``--ranks`` and ``--shard``, which it takes as `how`.

    Args:
        unless_asked: the mode if none is given; None for ``fake``, and ``measured`` if that fails.
    """
    usual = unless_asked or "fake"

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(
            *, mode: Mode | None, device: str | None, optimizer: str | None, ranks: int | None, shard: Any, **given: Any
        ) -> Any:
            asked = among(ranks, shard)
            if asked is not None and mode == "measured":
                raise click.UsageError("--ranks goes with --mode fake: a step cannot run where the other ranks are not")
            if device is not None and asked is None and (mode or usual) == "measured":
                raise click.UsageError(
                    "--device goes with --mode fake: a measured step times the device that it runs on"
                )
            mode = mode if asked is not None else mode or unless_asked
            how = HowRecorded(mode=mode, device=device, optimizer=optimizer, among=asked)
            return function(how=how, **given)

        return _mode(usual)(_device(options.optimizer(rank_options(run))))

    return decorate


def _mode(usual: Mode) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    what = {
        "fake": "run nothing, and predict memory and, by the roofline of a device, seconds",
        "measured": "run a step, whose activations wait elsewhere, and time it",
    }
    said = [f"{mode}{', the default' if mode == usual else ''}: {words}." for mode, words in what.items()]
    return click.option("--mode", type=click.Choice(list(what)), help=f"Of a function. {' '.join(said)}")


_device = click.option(
    "--device",
    type=click.Choice(sorted(ROOFLINES)),
    metavar="NAME",
    help=f"With --mode fake: the device whose seconds to predict: h100. Without it, {DEFAULT_DEVICE}.",
)


def record(target: str, how: HowRecorded) -> Profile:
    """Record a training step of the model that `target` builds, without running it unless its mode is ``measured``.

    If `how` has neither mode nor device, and the model's own code fails on fake tensors, which have no values, a real
    step runs after all. That is said on stderr.

    Raises:
        ProfilingError: the step cannot be recorded.
        Misuse: the user's own code raised something.
    """
    if how.among is not None:
        (found,) = record_among(target, how.among, [how.device], how.optimizer, holds_outputs=how.holds_outputs)[1]
        return found
    made = build(target)
    if how.mode == "measured":
        return _run(target, made, how)
    hint = NO_VALUES if how.mode or how.device else ""
    try:
        with progress(f"recording a step of {type(made.model).__name__}, without running it"):
            return _recorded(made, how, "fake")
    except Exception as error:
        own = not isinstance(error, AutockptError) or (isinstance(error, ProfilingError) and error.own is not error)
        if hint or not own:
            with calling(f"a step of {target}", hint):
                raise
        tell(f"a step on fake tensors, which have no values, failed, so a real one runs ({_named(error)})")
    return _run(target, made, how)


def left_to_measure(source: str, profile: Profile | None) -> str:
    """Say what a user can still do for a function whose step did not run; empty if it ran, or cannot run."""
    if profile is None or profile.mode != "fake" or profile.world is not None or not names_function(source):
        return ""
    return "--mode measured runs a step"


def record_among(
    target: str, asked: Among, devices: Sequence[str | None], optimizer: str | None, *, holds_outputs: bool = True
) -> tuple[Target, list[Profile]]:
    """Build `target` on one of several ranks; return what it made, and its step with the seconds of each device."""
    with world_of(asked), progress(f"recording a step of {target} on one rank of {asked.ranks}, without running it"):
        made = build(target, asked.hint())
        taken = optimizer or made.optimizer
        return made, profiles_among(target, made, asked, devices, optimizer=taken, holds_outputs=holds_outputs)


def _run(target: str, made: Target, how: HowRecorded) -> Profile:
    with progress(f"recording a step of {type(made.model).__name__}"), calling(f"a step of {target}"):
        return _recorded(made, how, "measured")


def _recorded(made: Target, how: HowRecorded, mode: Mode) -> Profile:
    from .._record import profile

    return profile(
        made.model,
        made.inputs,
        loss=made.loss,
        optimizer=how.optimizer or made.optimizer,
        mode=mode,
        device=how.device,
        holds_outputs=how.holds_outputs,
    )


def _named(error: Exception) -> str:
    """Say what an error was in a few words."""
    own = error.own if isinstance(error, ProfilingError) else error
    return f"{type(own).__name__}: {' '.join(str(own).split()):.100}"
