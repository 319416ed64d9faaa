"""`autockpt.profile`: records a step of a model in this process, or of one rank of several that are not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch

from ..._calls.failing import described, failing
from ..._data.errors import ProfilingError
from ..._data.profile import Profile
from ...solvers.units import shown
from .. import profile as recorded
from ..optimizers.memory import Optimizers
from ..recorder import Mode
from ..step import Loss
from .group import world_of
from .rank import OnRank, Way, profiles_of_rank

MISSING: Any = object()

AS_RANK = (
    "It ran in a process group of its own (backend fake), as rank 0. A build that opens a group, or asks others for "
    "values, goes without that here: torch.distributed.is_initialized() says whether there is a group"
)


def profile(
    model: torch.nn.Module | Callable[[], Any],
    inputs: object = MISSING,
    *,
    loss: Loss | None = None,
    optimizer: Optimizers | None = None,
    mode: Mode | None = None,
    device: str | None = None,
    holds_outputs: bool = True,
    world_size: int | None = None,
    shard: Way | None = None,
) -> Profile:
    """Record what a training step of `model` on `inputs` holds, when, and what each call costs.

    Everything is put back: generators, buffers, flags, attributes, hooks; gradients are never touched. What cannot
    be put back is named in the profile's notes. Hooks that run after a gradient was accumulated do not run; a
    tensor's own hooks do, since they may change the gradient. If a plan is applied to the model, the recorded steps
    run without it.

    In the step that is watched, the tensors that forward saves for backward wait on the host. The steps that are only
    timed hold them as in training.

    With `world_size`, the step is that of one rank of so many, and no other rank has to be there. ``profile(build,
    world_size=8)`` opens a process group of eight in which collectives bring no values, calls `build` in it as rank 0,
    and records the model that it returns in fake mode. The build shards by ``fully_shard`` (FSDP2) or
    ``parallelize_module``, or wraps in DistributedDataParallel, as it does in training.

    Args:
        model: the model, in the mode (train or eval) in which it will train; with `world_size` a function without
            arguments that returns ``(model, inputs)``, ``(model, inputs, loss)`` or ``(model, inputs, loss,
            optimizer)``.
        inputs: one batch: a tuple is passed positionally, a mapping by keyword. Not with `world_size`.
        loss: maps the model's outputs to a scalar; without it memory is reserved as by `apply`.
        optimizer: its state counts as static bytes, also before its first step. Its step counts as the end of the
            training step; it is neither run nor changed. A name such as ``"adamw"`` stands for a class of
            ``torch.optim`` with its defaults, a list for several that step one after the other.
        mode: ``measured`` runs one step that is watched and a few that are timed; ``fake`` runs nothing. None is
            ``measured``, and with `world_size` ``fake``.
        device: with ``fake``, the device whose roofline gives the seconds: ``a100`` (the default), ``h100``, ``h200``,
            ``rtx4090`` or ``t4``; ``measured`` ignores it.
        holds_outputs: whether the loop still has a name for the model's outputs when the optimizer steps. False is for
            a loop that keeps the loss alone, as transformers' Trainer does.
        world_size: how many ranks train together; None to record the given model in this process.
        shard: with `world_size`, ``fsdp2`` makes units of the model's repeated blocks and of its root, if `build`
            shards nothing. None leaves such a model whole.

    Returns:
        The profile.

    Raises:
        NotApplicable: the model has no trainable parameters, or lies on several ranks; with `world_size`, this process
            is in a process group already, or `build` shares the model in a way that needs the other ranks (FSDP1,
            shards on the host).
        ProfilingError: the model cannot be recorded: no loss, an unknown mode, device or optimizer, an optimizer that
            trains something else, a gradient taken inside forward, a profiler that is already running, or forward or
            the loss fails on the batch, which leaves the model as it was; or `world_size` is no number of ranks, or
            `build` fails as one of them.
        Exception: an error of the model's own, of another class than Python's usual ones.

    Example:
        >>> import torch, autockpt
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        >>> autockpt.profile(model, torch.randn(4, 8)).mode
        'measured'

        A rank of two, in a process by itself:

        >>> from torch.distributed.fsdp import fully_shard
        >>> def build():
        ...     model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        ...     fully_shard(model)
        ...     return model, torch.randn(4, 8)
        >>> autockpt.profile(build, world_size=2).static.parameter_bytes
        288
    """
    if world_size is None:
        if shard is not None:
            raise ProfilingError("shard= goes with world_size=, the number of ranks that a model is to be shared by")
        if inputs is MISSING:
            raise TypeError("profile() needs a batch: profile(model, inputs), or profile(build, world_size=8)")
        mode = mode or "measured"
        return recorded(
            model,  # type: ignore[arg-type]
            inputs,
            loss=loss,
            optimizer=optimizer,
            mode=mode,
            device=device,
            holds_outputs=holds_outputs,
        )
    refuse_unfit_for_world_size(model, inputs, mode, shard)
    with world_of(world_size):
        made = built(model)
        made = replace(made, loss=loss or made.loss, optimizer=optimizer or made.optimizer, holds_outputs=holds_outputs)
        (found,) = profiles_of_rank(made, [device], shard)
        return found


def refuse_unfit_for_world_size(build: object, inputs: object, mode: Mode | None, shard: Way | None) -> None:
    """Refuse arguments that do not go with `world_size`.

    Raises:
        ProfilingError: one of them does not.
    """
    if isinstance(build, torch.nn.Module) or not callable(build) or inputs is not MISSING:
        raise ProfilingError(
            "with world_size= the model is built as one of the ranks: give a function that returns (model, inputs), "
            f"and no batch; found {shown(build)}"
        )
    if mode not in (None, "fake"):
        raise ProfilingError(f"mode {mode!r} runs a step, and with world_size= the other ranks are not there: use fake")
    if shard not in (None, *get_args(Way)):
        raise ProfilingError(f"unknown shard {shard!r}; there is {', '.join(get_args(Way))}")


def built(build: Callable[[], Any]) -> OnRank:
    """Build a model as one of the ranks.

    Raises:
        ProfilingError: it fails there, or returns something else than a model and its batch.
    """
    with failing("build", lambda: "rank 0 of ranks that are not there", AS_RANK):
        made = build()
    return read_built(made)


def read_built(made: object) -> OnRank:
    """Read what a build returned.

    Raises:
        ProfilingError: it is something else than a model and its batch.
    """
    if not (isinstance(made, tuple) and len(made) in (2, 3, 4) and isinstance(made[0], torch.nn.Module)):
        raise ProfilingError(
            "build must return (model, inputs), (model, inputs, loss) or (model, inputs, loss, optimizer); it returned "
            f"{described(made)}"
        )
    return OnRank(*made)
