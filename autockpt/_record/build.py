"""Builds a profile from what was seen of a step, and counts the bytes that are allocated before it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import torch

from .. import _torch_private as private
from .._calls.contents import Contents
from .._calls.roots import title
from .._data.host_seconds import HostSeconds
from .._data.profile import Profile
from .._data.tables import Static
from .._device import Device, device_of, rounded
from .._optimizer.memory import OptimizerMemory
from .._ranks.fsdp import parameters_at_rest
from .._tables.flow import Flow
from .._tables.host import host_seconds_of
from .._tables.lifetimes import lifetimes
from .._tables.seconds import Seconds
from .._tables.tables import make_tables
from .._watch.marks import SeenStep
from .host_speed import host_slowdown
from .own_replays import own_replays
from .sandbox import compile_notes


def build_profile(
    model: torch.nn.Module,
    device: torch.device,
    run: SeenStep,
    seconds: Seconds,
    *,
    optimizer: OptimizerMemory,
    static: Static,
    notes: Iterable[str],
    ran: bool = True,
) -> Profile:
    """Make the profile of a watched step.

    Args:
        model: the model.
        device: the device that it trains on.
        run: what was seen of the step.
        seconds: the times of a plain step.
        optimizer: what the optimizer needs.
        static: the bytes allocated before the step, without optimizer state and workspaces of operators.
        notes: further notes, on what could not be seen or put back.
        ran: whether this host ran it, and not on fake tensors.
    """
    found = lifetimes(run)
    static = msgspec.structs.replace(
        static, optimizer_bytes=optimizer.state_bytes, other_bytes=static.other_bytes + found.workspace_bytes
    )
    tables = make_tables(Flow(run, found), found, seconds)
    own = own_replays(model, run.regions)
    host = host_seconds_of(seconds, tables["calls"], one_forward=not found.late_forwards())
    changed, on = {name for call in tables["calls"] for name in call.buffers}, device_of(device)
    return Profile(
        model=title(model),
        mode="measured" if ran else "fake",
        device=on.name,
        torch_version=str(torch.__version__),
        recorded=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        plain_seconds=seconds.plain_seconds,
        host_slowdown=host_slowdown() if ran else None,
        host=HostSeconds(alone=notes[0]) if host and (notes := _device_notes(model, device)) else host,
        static=static,
        optimizer=optimizer.source,
        optimizer_step_bytes=optimizer.step_bytes,
        ticks=found.ticks,
        forward_ticks=next(found.of_kind("forward_end")).tick,
        late_forwards=found.late_forwards(),
        generator_bytes=on.generator_bytes,
        **tables,
        buffer_bytes={name: rounded(on, model.get_buffer(name).nbytes) for name in sorted(changed)},
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


def static_bytes(
    model: torch.nn.Module,
    device: Device | None,
    inputs: Sequence[torch.Tensor],
    contents: Contents | None = None,
    gradients: Iterable[torch.Tensor | None] = (),
) -> Static:
    """Count the bytes that are allocated before a step, each storage once, rounded as by the allocator.

    Args:
        model: the model.
        device: the device that it trains on: only storages on it count. None if the device is only planned for: then
            all storages count, unrounded.
        inputs: the tensors of its batch.
        contents: tensors in attributes and in the loss's closure, which count too; None if they are counted elsewhere.
        gradients: the existing gradients.
    """
    counted = partial(storage_bytes, device)
    parameters = parameters_at_rest(model)
    own = {*map(private.storage_key, private.parts((*inputs, *parameters, *model.buffers())))}
    held = private.parts(each for _, each in contents.tensors) if contents is not None else []
    others = [each for each in held if private.storage_key(each) not in own]
    return Static(
        parameter_bytes=counted(parameters),
        buffer_bytes=counted(model.buffers()),
        input_bytes=counted(inputs),
        gradient_bytes=counted(each for each in gradients if each is not None),
        other_bytes=counted(others),
    )


def storage_bytes(device: Device | None, tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes that the device's allocator gave to those of the tensors that lie on it, each storage once.

    For None, tensors on any device count, unrounded.
    """
    dense = [tensor for tensor in private.parts(tensors) if tensor.layout == torch.strided]
    own = dense if device is None else [tensor for tensor in dense if tensor.device == device.at]
    sizes = {private.storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in own}
    return sum(sizes.values()) if device is None else sum(rounded(device, size) for size in sizes.values())
