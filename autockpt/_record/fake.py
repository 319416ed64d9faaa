"""Recording where nothing runs: fake tensors, and the roofline of a named device.

What fake mode cannot see is said in the profile: buffers inside kernels, and that some models run other
operators when their tensors are fake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import msgspec
import torch
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from .. import _torch_private as private
from .._data.errors import ProfilingError
from .._data.profile import Profile
from .._data.rooflines import DEFAULT_DEVICE, ROOFLINES, Roofline
from .._device import Clock, planned_device
from .._optimizer.memory import Chosen, optimizer_memory
from .._stash import open_stash
from .._stash.base import Spill, SpilledTensor
from .._watch.routing import Given, routed_operators, tensors_in
from .._watch.storage_tape import StorageTape
from .build import build_profile, static_bytes
from .left_over import nothing_left_over
from .runs import watch_step
from .sandbox import Sandbox
from .step import Arguments, TrainingStep, training_step
from .timing import recorded_seconds

NOTES = (
    "nothing ran: buffers inside kernels are not counted, and seconds are those of a roofline",
    "some models run other operators on fake tensors (masks, repeated heads); record a real step once one fits",
)


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Scores, and values weighed by them, of every head of the queries, as if none were masked."""
    return 2 * _scores(query, key) * int(query.shape[-1] + value.shape[-1])


def _attention_backward_flops(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Scores again, then the gradients of scores, values, queries and keys."""
    return 2 * _scores(query, key) * int(3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: Any, key: Any) -> int:
    return int(query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2])


def _grouped_flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    """A row, a column or an inner index belongs to one of the groups, unless both sides have the groups apart."""
    groups = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return 2 * groups * int(a.shape[-2]) * int(a.shape[-1]) * int(b.shape[-1])


FLOPS: Mapping[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    torch.ops.aten._grouped_mm: _grouped_flops,
}
"""What torch's own table of operators that compute lacks."""

NO_WORK = frozenset(
    {
        torch.ops.aten._unsafe_view,
        torch.ops.aten.empty,
        torch.ops.aten.empty_like,
        torch.ops.aten.empty_strided,
        torch.ops.aten.new_empty,
        torch.ops.aten.new_empty_strided,
    }
)
"""Operators that neither compute nor move bytes; so do views."""


def profile_fake(step: TrainingStep, optimizers: Sequence[Chosen] = (), device: str | None = None) -> Profile:
    """Record a step as one of fake tensors; see `autockpt.profile`.

    The model may be real, on the meta device, or made of fake tensors itself.

    Raises:
        ProfilingError: there is no roofline of that name.
    """
    name = device or DEFAULT_DEVICE
    if name not in ROOFLINES:
        raise ProfilingError(f"no roofline for device {name!r}; there are {', '.join(sorted(ROOFLINES))}")
    modes = map(private.fake_mode_of, (*step.model.parameters(), *step.model.buffers()))
    own = next((mode for mode in modes if mode is not None), None)
    mode = own or private.new_fake_mode()
    with nullcontext() if own else nothing_left_over(mode):
        return _recorded(step, mode, optimizers, name)


def _recorded(step: TrainingStep, mode: Any, optimizers: Sequence[Chosen], name: str) -> Profile:
    model, inputs = step.model, Arguments(step.args, step.kwargs)
    with Sandbox(model, loss=step.loss, buffers=False) as sandbox:
        static = static_bytes(model, None, step.inputs(), sandbox.contents, step.held)
        _replace_by_fakes(model, mode)
        batch = tree_map_only(torch.Tensor, lambda tensor: _fake(mode, tensor), inputs)
        on_fakes = training_step(model, batch, step.loss, hooks=step.hooks)
        step = replace(on_fakes, holds_outputs=step.holds_outputs)
        clock = RooflineClock(ROOFLINES[name])
        with mode, clock:
            spill = _FakeSpill(open_stash(step.device, roomy=True), step.device, step.inputs())
            held = [each for _, each in sandbox.contents.tensors]
            run = watch_step(step, StorageTape(), clock, spill, held=held)
        profile = build_profile(
            model,
            step.device,
            run,
            recorded_seconds(run, clock, backward=True),
            optimizer=optimizer_memory(optimizers, run.reached, planned_device()),
            static=static,
            notes=(*NOTES, *sandbox.notes()),
        )
        return msgspec.structs.replace(profile, mode="fake", device=name)


class _FakeSpill(Spill):
    """Leaves real tensors where they are, such as targets that the loss has: no step of fakes made them."""

    def take(self, tensor: torch.Tensor) -> SpilledTensor | torch.Tensor:
        return tensor if private.fake_mode_of(tensor) is None else super().take(tensor)


class RooflineClock(Clock, routed_operators):
    """A clock that moves by what each operator would take on the device; a context around the run."""

    def __init__(self, device: Roofline) -> None:
        super().__init__(self._on_operator)
        self._device = device
        self._now = 0.0

    def stamp(self) -> object:
        return self._now

    def _on_operator(self, op: Any, given: Given, run: Callable[[], Any]) -> Any:
        output = run()
        if not op.is_view and op.overloadpacket not in NO_WORK:
            self._now += self._operator_seconds(op.overloadpacket, *given, output)
        return output

    def _operator_seconds(self, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> float:
        """The longer of computing and moving bytes."""
        tensors = tensors_in((args, kwargs, output))
        moved = sum(tensor.numel() * tensor.itemsize for tensor in tensors) / self._device.bytes_per_second
        if packet in FLOPS:
            flops = FLOPS[packet](*args, **kwargs)
        elif packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=output)
        else:
            return moved
        rate = self._device.half_flops if tensors[0].itemsize <= 2 else self._device.single_flops
        return max(moved, flops / rate)


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
    """Put fakes in the place of a model's parameters and buffers; the sandbox puts the originals back."""
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
