"""An optimizer step that changes nothing and computes nothing, to see what it allocates.

A *shadow* of the optimizer takes the step: an object of the same class with the same attributes, whose parameters,
gradients and state are on the meta device. A tape records when their storages are allocated and freed:

    level   ╭╮    ╭─╮ ╭─╮ ╭─╮
            ││ ╭──╯ ╰─╯ ╰─╯ ╰   step_bytes: how far the highest level is above the last
          ╭─╯╰─╯                state_bytes: how far the last level is above parameters and gradients
        ──╯                     parameters and gradients
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from ..._calls.own_errors import Refused
from ..._torch import private
from ..._torch.devices import Device, Event, rounded
from ..watch.routing import Given, tensors_in
from ..watch.storage_tape import StorageTape

Group = dict[str, Any]

ELEMENTWISE = frozenset({"aten.lerp_.Scalar", "aten.addcmul_.default", "aten.addcdiv_.default"})
"""Operators in place that torch works out in Python, slowly, where tensors have no values: Adam has all three."""

FAR_STEP = 1000
"""A step far into training: some optimizers (RAdam) need more after their first steps."""


def shadow_step(
    optimizer: Optimizer, groups: Sequence[Group], gets_gradient: Callable[[torch.Tensor], bool], device: Device
) -> tuple[int, int]:
    """Let a shadow of `optimizer` take its next step and one far into training.

    Args:
        optimizer: stays as it is; neither its hooks nor patches of its ``step`` run.
        groups: which of its groups take part.
        gets_gradient: whether a parameter has a gradient when the step is taken.
        device: where it trains.

    Returns:
        Bytes of the state after the steps, and the most bytes that one of the steps allocates on top.

    Raises:
        Exception: whatever the optimizer raises on tensors without values; TypeError if it uses its real tensors or
            passes its step on to another optimizer.
    """
    if any(isinstance(value, Optimizer) for value in vars(optimizer).values()):
        raise TypeError("it passes its step on to another optimizer")
    step = private.bare_step(type(optimizer))
    tape = _ShadowTape()
    with tape, torch.no_grad():
        parameters = [parameter for group in groups for parameter in group["params"]]
        twins = {id(parameter): twin_of(parameter) for parameter in parameters}
        gradients = {id(p): torch.empty_like(twins[id(p)]) for p in parameters if gets_gradient(p)}
        for key, gradient in gradients.items():  # they stay alive even if the step drops them
            twins[key].grad = gradient
        tape.mark()
        shadow = _shadow(optimizer, groups, twins, device)
        tape.mark()
        tape.guard(optimizer)
        step(shadow)
        _go_far(shadow)
        step(shadow)
        tape.mark()
    (held_bytes, _, last_bytes), peak_bytes = _levels(tape.events(), device)
    needed_bytes = peak_bytes - last_bytes
    needed_bytes += device.number_bytes if needed_bytes else 0
    return last_bytes - held_bytes + _counter_bytes(shadow, groups, twins, device), needed_bytes


def twin_of(parameter: torch.Tensor) -> torch.nn.Parameter:
    """Return a parameter of the same shape without memory; for one that is spread over ranks, of this rank's part."""
    (here,) = private.parts([parameter]) if private.is_distributed(parameter) else [parameter]
    shape, strides = private.geometry(here)
    hollow = torch.empty_strided(shape, strides, dtype=parameter.dtype, device="meta")
    return torch.nn.Parameter(hollow, requires_grad=parameter.requires_grad)


def state_tensors(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the tensors of an optimizer's state."""
    leaves = tree_leaves(list(optimizer.state.values()))
    return private.parts(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


class _ShadowTape(StorageTape):
    """A tape of storages on the meta device: reading a value gives a made-up one, and asking for an address fails."""

    def __init__(self) -> None:
        super().__init__()
        self._untouchable: frozenset[int] = frozenset()

    def guard(self, optimizer: Optimizer) -> None:
        """Refuse from now on every operator that gets the optimizer's own parameters, gradients or state."""
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        own += [parameter.grad for parameter in own if parameter.grad is not None]
        self._untouchable = frozenset(self.key(tensor) for tensor in (*own, *state_tensors(optimizer))) - {0}

    def _on_operator(self, op: Any, given: Given, run: Callable[[], Any]) -> Any:
        tensors = tensors_in(given)
        if private.is_item(op) and tensors[0].device.type == "meta":
            return torch.full((), 0.5, dtype=torch.float64).to(tensors[0].dtype).item()
        if not self._untouchable.isdisjoint(map(self.key, tensors)):
            raise Refused("it reaches its tensors by another way than through its groups and its state")
        if str(op) in ELEMENTWISE and _all_hollow_alike(tensors):
            return given[0][0]  # nothing is allocated, and nothing can be wrong
        output = super()._on_operator(op, given, run)
        for tensor in tensors_in(output):
            private.refuse_pointers(tensor)
        return output

    def _born(self, key: int, storage: torch.UntypedStorage) -> None:
        if storage.device.type == "meta":
            super()._born(key, storage)


def _all_hollow_alike(tensors: Sequence[torch.Tensor]) -> bool:
    return tensors[0].is_meta and len({(each.shape, each.dtype, each.device) for each in tensors}) == 1


def _shadow(
    optimizer: Optimizer, groups: Sequence[Group], twins: Mapping[int, torch.Tensor], device: Device
) -> Optimizer:
    """Return a shadow that trains the twins of the parameters in `groups`."""
    storages: dict[int, torch.UntypedStorage] = {}

    def hollow(tensor: torch.Tensor) -> torch.Tensor:
        return twins[id(tensor)] if id(tensor) in twins else _hollow(tensor, storages)

    def counter(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if tensor.device.type == "cpu" and not tensor.dim() else hollow(tensor)

    def hollow_state(parameter: torch.Tensor, values: Any) -> Any:
        if not isinstance(values, dict):
            return tree_map_only(torch.Tensor, hollow, values)
        # On the host only ``step`` is real: other scalars may be moments of a scalar parameter, hollow like it.
        kept = {key: counter if key == "step" or parameter.device.type != "cpu" else hollow for key in values}
        return {key: tree_map_only(torch.Tensor, kept[key], value) for key, value in values.items()}

    shadow = private.blank_optimizer(optimizer)
    own = {key: value for key, value in vars(shadow).items() if key not in ("state", "param_groups")}
    vars(shadow).update(tree_map_only(torch.Tensor, hollow, own))
    shadow.state = defaultdict(dict)
    state: Mapping[Any, Any] = optimizer.state  # some keep state that belongs to no parameter, by name
    for key, values in state.items():
        if id(key) in twins:
            shadow.state[twins[id(key)]] = hollow_state(key, values)
        elif not isinstance(key, torch.Tensor):
            shadow.state[key] = tree_map_only(torch.Tensor, counter, values)
    shadow.param_groups = [_shadow_group(optimizer, group, twins, device) for group in groups]
    return shadow


def _shadow_group(
    optimizer: Optimizer, group: Group, twins: Mapping[int, torch.Tensor], device: Device
) -> dict[str, Any]:
    """Return a group of twins with options that choose the same implementation as the real group on its device."""
    options = {key: value for key, value in group.items() if key != "params"}
    made: Group = tree_map_only(torch.Tensor, lambda tensor: tensor.item(), options)
    if (group.get("foreach", False), group.get("fused")) == (None, None) and not group.get("differentiable"):
        plain = group.get("capturable") or not isinstance(group.get("lr"), torch.Tensor)
        made["foreach"] = plain and private.foreach_by_default(type(optimizer), group["params"], device.at.type)
    for option in ("fused", "capturable"):  # these want tensors on a device
        if group.get(option):
            made[option] = False
    return {**made, "params": [twins[id(parameter)] for parameter in group["params"]]}


def _hollow(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return a tensor like this one without memory. Tensors that share a storage get a common one of the same size."""
    if private.is_distributed(tensor):
        (tensor,) = private.parts([tensor])
    if tensor.layout != torch.strided:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    key = private.storage_key(tensor)
    if key not in storages:
        size = tensor.untyped_storage().nbytes()
        storages[key] = torch.empty(size, dtype=torch.uint8, device="meta").untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device="meta")
    return empty.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())


def _go_far(shadow: Optimizer) -> None:
    """Set the step counters to a step far into training."""
    for values in shadow.state.values():
        step = values.get("step") if isinstance(values, dict) else None
        if isinstance(step, torch.Tensor):
            step.fill_(FAR_STEP)
        elif step is not None:
            values["step"] = type(step)(FAR_STEP)


def _levels(events: Iterable[Event], device: Device) -> tuple[list[int], int]:
    """Return the level at each marker, and the highest from the second marker on."""
    sizes: dict[int, int] = {}
    level_bytes = peak_bytes = 0
    marked: list[int] = []
    for event in events:
        if event.kind == "mark":
            marked.append(level_bytes)
        elif event.kind == "alloc":
            sizes[event.key] = rounded(device, event.bytes)
            level_bytes += sizes[event.key]
        else:
            level_bytes -= sizes.pop(event.key)
        if len(marked) > 1:
            peak_bytes = max(peak_bytes, level_bytes)
    return marked, peak_bytes


def _counter_bytes(
    shadow: Optimizer, groups: Sequence[Group], twins: Mapping[int, torch.Tensor], device: Device
) -> int:
    """Bytes of the step counters that the optimizer has on its device: real tensors, which the tape does not see."""
    total = 0
    for group in groups:
        places = {device.at.type, "cpu"} if group.get("fused") or group.get("capturable") else {device.at.type}
        leaves = tree_leaves([shadow.state.get(twins[id(parameter)], {}) for parameter in group["params"]])
        counters = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type in places]
        total += sum(rounded(device, counter.nbytes) for counter in counters)
    return total
