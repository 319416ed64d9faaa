"""What a member's forward finds around it, taken when it begins and put back for its replay.

    forward   ├─ training flags, parameters, buffers, autocast ─ taken ─┤
    replay    ├─ put back ───────── the member's forward ─────── undone ┤

Taking holds references, not bytes, but for the values of buffers that forward changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _torch_private
from .._errors import ReplayError
from .slots import Held, check_unchanged

__all__ = ["Autocast", "ModuleState"]

Undo = list[tuple[Callable[..., Any], tuple[Any, ...]]]


class ModuleState:
    """Training flags, parameters and buffers of a member's module tree at the start of its forward.

    Attributes:
        devices: devices other than the CPU that hold parameters or buffers.
        requires_grad: whether any of them wants a gradient.
    """

    __slots__ = ("_attributes", "_buffers", "_changing", "_entries", "_flags", "_tree", "_watch_all", "devices", "requires_grad")

    def __init__(
        self, module: nn.Module, changing: tuple[str, ...] | None, attributes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        """Take the state of `module`.

        Args:
            module: the member.
            changing: names, relative to `module`, of buffers that its forward changes; None if that is not known.
            attributes: plain attributes, each with the module inside `module` that has it, to take as tensors.
        """
        self._attributes = [
            (owned, name, Held(owned[name]))
            for path, name in attributes
            if isinstance((owned := module.get_submodule(path).__dict__).get(name), Tensor)
        ]
        self._tree = _tree(module)
        self._flags = [member.__dict__["training"] for member in self._tree]
        self._buffers = [member._buffers for member in self._tree if member.__dict__["_buffers"]]
        self._watch_all = changing is None
        self._changing: list[_Changing] = []
        # Owning dict, name, tensor, version, requires_grad; one flat list, since this runs for every call of a member.
        self._entries: list[tuple[dict[str, Any], str, Tensor, int, bool]] = [
            (owned, name, tensor, -1 if tensor.is_inference() else tensor._version, tensor.requires_grad)
            for member in self._tree
            for owned in (member.__dict__["_parameters"], member.__dict__["_buffers"])
            for name, tensor in owned.items()
            if tensor is not None
        ]
        self.devices = {entry[2].device for entry in self._entries if not entry[2].is_cpu}
        self.requires_grad = any(entry[4] for entry in self._entries)
        if changing or (changing is None and self._buffers):
            self._take_values(module, changing)

    def _take_values(self, module: nn.Module, changing: tuple[str, ...] | None) -> None:
        """Take the values of the buffers that may change; only of the other entries the version must not move."""
        if changing is None:
            wanted = {(id(owned), name) for owned in self._buffers for name in owned}
        else:
            paths = [path.rpartition(".") for path in changing]
            wanted = {(id(module.get_submodule(prefix)._buffers), name) for prefix, _, name in paths}
        entries, self._entries = self._entries, []
        for entry in entries:
            if (id(entry[0]), entry[1]) in wanted:
                self._changing.append(_Changing(*entry[:4]))
            else:
                self._entries.append(entry)

    def owners(self) -> dict[int, Tensor]:
        """Return the parameters and buffers by the key of their storage."""
        every = [entry[2] for entry in self._entries] + [buffer.tensor for buffer in self._changing]
        try:
            return {tensor.untyped_storage()._cdata: tensor for tensor in every}
        except NotImplementedError:  # one of them has no storage
            return {_torch_private.storage_key(tensor): tensor for tensor in every}

    def settle(self) -> None:
        """Let go of what only the forward itself needed, after it."""
        if self._watch_all:
            for buffer in self._changing:
                buffer.release_if_unchanged()

    def put_back(self, undo: Undo) -> None:
        """Put the state back, with scratch copies of the buffers that forward changes.

        Args:
            undo: is given the calls that undo it, to be made from the last to the first.

        Raises:
            RuntimeError: a parameter or buffer has changed in place since forward began.
            ReplayError: a module in the tree was exchanged since.
        """
        if _tree(self._tree[0]) != self._tree:
            raise ReplayError(
                f"modules inside a {type(self._tree[0]).__name__} were exchanged between its forward and its replay. "
                "Exchange them after backward."
            )
        for buffers in self._buffers:
            undo.append((_reset, (buffers, dict(buffers))))
        for owned, name, tensor, version, requires_grad in self._entries:
            if (-1 if tensor.is_inference() else tensor._version) != version:
                check_unchanged(tensor, version, f"parameter or buffer {name!r}")
            if owned.get(name) is not tensor:
                _put(owned, name, tensor, undo)
            if tensor.requires_grad != requires_grad:
                undo.append((tensor.requires_grad_, (not requires_grad,)))
                tensor.requires_grad_(requires_grad)
        for buffer in self._changing:
            buffer.owned[buffer.name] = buffer.scratch()
        for owned, name, held in self._attributes:
            _put(owned, name, held.tensor(), undo)
        for member, flag in zip(self._tree, self._flags, strict=True):
            if member.training != flag:
                undo.append((setattr, (member, "training", member.training)))
                member.training = flag


class _Changing:
    """A buffer that forward may change, with its value from before."""

    __slots__ = ("name", "owned", "tensor", "value", "version")

    def __init__(self, owned: dict[str, Any], name: str, tensor: Tensor, version: int) -> None:
        self.owned = owned
        self.name = name
        self.tensor = tensor
        self.version = version
        self.value: Tensor | None = tensor.detach().clone()

    def release_if_unchanged(self) -> None:
        """Drop the value where the version says that forward wrote nothing.

        Kernels that write without a new version (BatchNorm's running statistics) do not read what they write for
        their result, so the replay may run on a copy of the present value.
        """
        if self.owned.get(self.name) is self.tensor and _torch_private.version(self.tensor) == self.version:
            self.value = None

    def scratch(self) -> Tensor:
        """Return a copy for one replay to change."""
        if self.value is not None:
            return self.value.clone()
        check_unchanged(self.tensor, self.version, f"buffer {self.name!r}")
        return self.tensor.detach().clone()


class Autocast:
    """The autocast settings of one forward."""

    __slots__ = ("_settings",)

    def __init__(self, devices: set[torch.device], *, enabled: bool = True) -> None:
        """Take the settings for the CPU and `devices`; or, without looking, that autocast is off for them."""
        kinds = {"cpu", *(device.type for device in devices)}
        self._settings = [
            (kind, enabled and torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds
        ]

    def put_back(self, undo: Undo) -> None:
        """Put the settings back; `undo` is given the calls that undo it.

        Not by `torch.autocast`, which on leaving empties the cache of casts that a region around backward may use.
        """
        for kind, enabled, dtype in self._settings:
            undo.append((torch.set_autocast_enabled, (kind, torch.is_autocast_enabled(kind))))
            undo.append((torch.set_autocast_dtype, (kind, torch.get_autocast_dtype(kind))))
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def _put(owned: dict[str, Any], name: str, tensor: Tensor, undo: Undo) -> None:
    if name in owned:
        undo.append((owned.__setitem__, (name, owned[name])))
    else:
        undo.append((owned.pop, (name,)))
    owned[name] = tensor


def _reset(owned: dict[str, Any], contents: dict[str, Any]) -> None:
    owned.clear()
    owned.update(contents)


def _tree(module: nn.Module) -> list[nn.Module]:
    """Return `module` and all modules inside it, each once (`Module.modules` costs several times as much)."""
    found = [module]
    seen = {id(module)}
    for member in found:
        for child in member.__dict__["_modules"].values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found
