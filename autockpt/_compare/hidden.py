"""State that calls may read and change and that frames do not restore: the inside of attributes, closures and globals.

Tensors are compared by bits, not by version alone: kernels of other libraries write through pointers, which changes no
version.

    before and after a forward    parameters, arguments, large tensors    checksums: a write cannot be put back, so the
                                                                          call is not replayed
    before and after a replay     small tensors                           copies: a write is put back
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias

import torch

from .. import _torch_private
from .._calls.checksum import Checksum, checksum_of, same
from .._calls.contents import Contents
from .._calls.layout import bytes_now, put_bytes, told_by_bytes
from .._calls.values import kept_whole
from .._data.keys import name_of
from .._frames.frame import MemberCall

MOST_SUMMED_BYTES = 2**28
"""Tensors in attributes, closures and globals are checked from the smallest on, up to so many bytes in all."""

MOST_COPIED_BYTES = 2**26
"""The first of them, up to so many bytes in all, are small: they are copied. The others get checksums."""

Named: TypeAlias = tuple[str, torch.Tensor]


class Hidden:
    """A snapshot of the objects that some calls can reach.

    It has what is inside the attributes of their modules, but not which object each attribute refers to: a replay
    restores those by itself.

    Args:
        calls: the calls.

    Attributes:
        generators: the torch generators among those objects.
    """

    def __init__(self, calls: Iterable[MemberCall]) -> None:
        modules: dict[str, torch.nn.Module] = {}
        roots: dict[str, object] = {}
        copied: set[int] = set()
        for call in calls:
            if call.module.member is not None:
                modules |= call.module.member.named_modules(prefix=name_of(call.key))
                copied |= call.module.copied
            roots[f"an argument of {call.key}"] = kept_whole(call.arguments)
        self._contents = Contents(roots | modules, bare=modules.values())
        hooks = {
            f"a hook of {name}": [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
            for name, module in modules.items()
            if module._forward_hooks or module._forward_pre_hooks
        }
        self._hooks = Contents(hooks, bare=modules.values())
        self.generators = self._contents.generators
        self._tensors = [tensor for _, tensor in self._contents.tensors]
        self._versions = _torch_private.versions(self._tensors)
        self._copied = copied
        self._modules = modules

    def small(self) -> list[Named]:
        """Return the tensors that are small enough to copy. Parameters, and buffers that replays copy, are left out."""
        return [named for named, total_bytes in self._by_size() if total_bytes <= MOST_COPIED_BYTES]

    def large(self) -> list[Named]:
        """Return the tensors that are too large to copy and get checksums."""
        found = self._by_size()
        return [named for named, total_bytes in found if MOST_COPIED_BYTES < total_bytes <= MOST_SUMMED_BYTES]

    def _by_size(self) -> list[tuple[Named, int]]:
        """Return the tensors in attributes, closures and globals by size, each with the total bytes up to it."""
        dense = [named for named in self._contents.tensors if id(named[1]) not in self._copied and has_bytes(named[1])]
        dense.sort(key=lambda named: named[1].nbytes)
        return [*zip(dense, accumulate(each.nbytes for _, each in dense), strict=True)]

    def weights(self) -> list[Named]:
        """Return the parameters, and the buffers that a replay does not copy."""
        return [
            (f"{name}.{key}", each)
            for name, module in self._modules.items()
            for key, each in (*module._parameters.items(), *module._buffers.items())
            if each is not None and id(each) not in self._copied
        ]

    def changed(self) -> list[str]:
        """Return the names of what has changed since the snapshot."""
        return [*self._contents.changed(), *self.written()]

    def lost(self) -> list[str]:
        """Return the names of what has changed since the snapshot and cannot be put back."""
        return [*self._contents.lost(), *self.written()]

    def put_back(self) -> None:
        """Restore the snapshot, except for what is lost."""
        self._contents.restore()

    def put_hooks_back(self) -> None:
        """Restore what the modules' forward hooks keep: they ran again in a replay whose results are not used."""
        self._hooks.restore()

    def written(self) -> list[str]:
        """Return the names of the tensors whose version has changed since the snapshot."""
        versions = _torch_private.versions(self._tensors)
        found = zip(self._contents.tensors, self._versions, versions, strict=True)
        return [name for (name, _), before, now in found if before != now]


class Sums:
    """Checksums of tensors as they are now.

    Args:
        named: the tensors, with names.
        given: tensors that a call was given. Only writes that change no version count for them: frames check versions.
            They are held weakly, since their graph may lead back to the frame.
    """

    def __init__(self, named: Iterable[Named], given: Iterable[torch.Tensor]) -> None:
        once = {id(each): (name, each) for name, each in named if has_bytes(each)}
        self._held = [(name, each, checksum_of(each)) for name, each in once.values()]
        others = {id(each): each for each in given if id(each) not in once and has_bytes(each)}
        self._given = [(weakref.ref(each), _torch_private.version(each), checksum_of(each)) for each in others.values()]

    def changed(self) -> list[str]:
        """Return the names of those whose bits have changed."""
        held = [name for name, each, before in self._held if _differ(each, before)]
        alive = [(each, version, before) for known, version, before in self._given if (each := known()) is not None]
        same_version = [(each, before) for each, version, before in alive if _torch_private.version(each) == version]
        given = [each for each, before in same_version if _differ(each, before)]
        return [*held, *(f"an argument of shape {_torch_private.sizes(each)} without a new version" for each in given)]


class SmallCopies:
    """Copies of tensors' present bytes, on the host.

    Args:
        named: the tensors, with names.
    """

    def __init__(self, named: Sequence[Named]) -> None:
        self._held = [(name, each, bytes_now(each)) for name, each in named]

    def put_back(self) -> list[str]:
        """Restore the bytes of every tensor without a new version. Return the names of those that had changed."""
        found = [(name, each, before) for name, each, before in self._held if bytes_now(each) != before]
        for _, each, before in found:
            put_bytes(each, before)
        return [name for name, *_ in found]


def has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes, and they define it."""
    return bool(told_by_bytes(tensor) and not tensor.is_meta and tensor.numel() and tensor.untyped_storage().nbytes())


def _differ(tensor: torch.Tensor, before: Checksum | None) -> bool:
    return not has_bytes(tensor) or not same(checksum_of(tensor), before)
