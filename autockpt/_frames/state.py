"""What a member's forward finds around it, taken when it begins and put back for its replay.

    forward   ├─ training flags, parameters, buffers, autocast, generators ─ taken ─┤
    replay    ├─ swap in ─────────────── the member's forward ──────────── swap back ┤

Taking holds references, not bytes, but for the values of buffers that forward changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import _torch_private
from .slots import check_unchanged

__all__ = ["Autocast", "ModuleState"]


class ModuleState:
    """Training flags, parameters and buffers of a member's module tree at the start of its forward.

    Attributes:
        owners: storage key to the parameter or buffer that owns the storage.
        devices: devices other than the CPU that hold parameters.
        requires_grad: whether any parameter wants a gradient.
    """

    __slots__ = ("_buffers", "_modules", "_versions", "_watch_all", "devices", "owners", "requires_grad")

    def __init__(self, module: nn.Module, changed: tuple[str, ...] | None) -> None:
        """Take the state of `module`.

        Args:
            module: the member.
            changed: names, relative to `module`, of buffers that its forward changes; None if that is not known.
        """
        self.owners: dict[int, Tensor] = {}
        self.devices: set[torch.device] = set()
        self.requires_grad = False
        self._modules: list[tuple[nn.Module, bool, dict[str, Any], dict[str, Any]]] = []
        self._versions: list[tuple[Tensor, int]] = []
        self._watch_all = changed is None
        self._buffers: list[_Buffer] = []
        for member in _tree(module):
            parameters, buffers = dict(member._parameters), dict(member._buffers)
            self._modules.append((member, member.training, parameters, buffers))
            for parameter in parameters.values():
                if parameter is not None:
                    self._own(parameter)
                    self._versions.append((parameter, _torch_private.version(parameter)))
            for name, buffer in buffers.items():
                if buffer is not None:
                    self._own(buffer)
                    if changed is None:
                        self._buffers.append(_Buffer(member, name, buffer))
                    else:
                        self._versions.append((buffer, _torch_private.version(buffer)))
        for path in changed or ():
            prefix, _, name = path.rpartition(".")
            owner = module.get_submodule(prefix)
            buffer = owner._buffers.get(name)
            if buffer is not None:
                self._buffers.append(_Buffer(owner, name, buffer))
                self._versions = [(tensor, version) for tensor, version in self._versions if tensor is not buffer]

    def _own(self, tensor: Tensor) -> None:
        self.owners[_torch_private.storage_key(tensor)] = tensor
        if tensor.requires_grad:
            self.requires_grad = True
        if not tensor.is_cpu:
            self.devices.add(tensor.device)

    def settle(self) -> None:
        """Let go of what only the forward itself needed, after the member's forward."""
        self.owners = {}
        if self._watch_all:
            for buffer in self._buffers:
                buffer.release_if_unchanged()

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Put the state back, with scratch copies of the buffers that forward changes; undo it on leaving.

        Raises:
            RuntimeError: a parameter or buffer has changed in place since forward began.
        """
        for tensor, version in self._versions:
            check_unchanged(tensor, version, "a parameter or buffer")
        scratch = {(id(buffer.module), buffer.name): buffer.scratch() for buffer in self._buffers}
        undo: list[tuple[nn.Module, bool, dict[str, Any] | None, dict[str, Any] | None]] = []
        try:
            for module, training, parameters, buffers in self._modules:
                now = module.training
                if now != training:
                    module.training = training
                old_parameters = old_buffers = None
                if not _same(module._parameters, parameters):
                    old_parameters = _exchange(module._parameters, parameters)
                if buffers or module._buffers:
                    old_buffers = _exchange(
                        module._buffers, {name: scratch.get((id(module), name), b) for name, b in buffers.items()}
                    )
                undo.append((module, now, old_parameters, old_buffers))
            yield
        finally:
            for module, now, old_parameters, old_buffers in undo:
                if module.training != now:
                    module.training = now
                if old_parameters is not None:
                    _exchange(module._parameters, old_parameters)
                if old_buffers is not None:
                    _exchange(module._buffers, old_buffers)


class _Buffer:
    """A buffer that forward changes, with its value from before."""

    __slots__ = ("module", "name", "tensor", "value", "version")

    def __init__(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        self.module = module
        self.name = name
        self.tensor = tensor
        self.version = _torch_private.version(tensor)
        self.value: Tensor | None = tensor.detach().clone()

    def release_if_unchanged(self) -> None:
        """Drop the value where the version says that forward wrote nothing.

        Kernels that write without a new version (BatchNorm's running statistics) do not read what they write for
        their result, so the replay may run on a copy of the present value.
        """
        if self.module._buffers.get(self.name) is self.tensor and _torch_private.version(self.tensor) == self.version:
            self.value = None

    def scratch(self) -> Tensor:
        """Return a copy for one replay to change."""
        if self.value is not None:
            return self.value.clone()
        check_unchanged(self.tensor, self.version, f"buffer {self.name!r} of a {type(self.module).__name__}")
        return self.tensor.detach().clone()


class Autocast:
    """The autocast settings of one forward."""

    __slots__ = ("_cache", "_kinds", "_settings")

    def __init__(self, devices: set[torch.device]) -> None:
        """Take the settings for the CPU and `devices`."""
        self._kinds = {"cpu", *(device.type for device in devices)}
        self._settings: dict[str, torch.dtype] = {}
        self._cache = True
        if _torch_private.any_autocast_enabled():
            self._settings = {k: torch.get_autocast_dtype(k) for k in self._kinds if torch.is_autocast_enabled(k)}
            self._cache = torch.is_autocast_cache_enabled()

    def enter(self, stack: contextlib.ExitStack) -> None:
        """Put the settings back until `stack` closes."""
        if not self._settings and not _torch_private.any_autocast_enabled():
            return
        for kind in self._kinds:
            dtype = self._settings.get(kind)
            if dtype is not None:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self._cache))
            elif torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))


def _tree(module: nn.Module) -> list[nn.Module]:
    """Return `module` and all modules inside it, each once (`Module.modules` costs several times as much)."""
    found = [module]
    seen = {id(module)}
    for member in found:
        for child in member._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    return len(now) == len(then) and all(now.get(name, then) is value for name, value in then.items())


def _exchange(entries: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Make `wanted` the contents of `entries` and return the old contents."""
    old = dict(entries)
    entries.clear()
    entries.update(wanted)
    return old
