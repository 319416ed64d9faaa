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
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import torch

from ..._calls.checksum import Checksum, all_same, checksum_of
from ..._calls.columns import Places
from ..._calls.layout import bytes_now, put_bytes, told_by_bytes
from ..._calls.objects.code import names_in
from ..._calls.objects.contents import Contents
from ..._calls.objects.put_back import Kept, kept_beside
from ..._calls.values import kept_whole
from ..._data.text.keys import name_of
from ..._torch import private
from ..frames.frame import MemberCall

MOST_SUMMED_BYTES = 2**28
"""Tensors in attributes, closures and globals are checked from the smallest on, up to so many bytes in all."""

MOST_COPIED_BYTES = 2**26
"""The first of them, up to so many bytes in all, are small: they are copied. The others get checksums."""

Named: TypeAlias = tuple[str, torch.Tensor]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Hidden:
    """A snapshot of the objects that some calls can reach.

    It has what is inside the attributes of their modules, but not which object each attribute refers to: a replay
    restores those by itself.

    Args:
        calls: the calls.
        given: the tensors that they were given, where their forwards are what is looked at.

    Attributes:
        generators: the torch generators among those objects.
    """

    def __init__(self, calls: Iterable[MemberCall], given: Sequence[torch.Tensor] = ()) -> None:
        modules: dict[str, torch.nn.Module] = {}
        roots: dict[str, object] = {}
        copied: set[int] = set()
        for call in calls:
            modules |= call.module.named(name_of(call.key))
            copied |= call.module.copied
            roots[call.key] = call.module.code()
            roots[f"an argument of {call.key}"] = kept_whole(call.arguments)
        self._contents = Contents(roots | modules, bare=modules.values())
        self.generators = self._contents.generators
        self._tensors = [tensor for _, tensor in self._contents.tensors]
        self._versions = private.versions(self._tensors)
        self._copied = copied
        self._modules = modules
        # Other threads' backwards may add to gradients while a replay runs, so only forwards are asked.
        self._beside = self._kept_beside(given) if given else []

    def small(self) -> list[Named]:
        """Return the tensors that are small enough to copy. Parameters, and buffers that replays copy, are left out."""
        return [named for named, total_bytes in self._by_size() if total_bytes <= MOST_COPIED_BYTES]

    def large(self) -> list[Named]:
        """Return the tensors that are too large to copy and get checksums."""
        found = self._by_size()
        return [named for named, total_bytes in found if MOST_COPIED_BYTES < total_bytes <= MOST_SUMMED_BYTES]

    def _by_size(self) -> list[tuple[Named, int]]:
        """Return the tensors in attributes, closures and globals by size, as `by_size` does."""
        return by_size([named for named in self._contents.tensors if id(named[1]) not in self._copied])

    def weights(self) -> list[Named]:
        """Return the parameters, and the buffers that a replay does not copy."""
        return [
            (f"{name}.{key}", each)
            for name, module in self._modules.items()
            for key, each in (*module._parameters.items(), *module._buffers.items())
            if each is not None and id(each) not in self._copied
        ]

    def _kept_beside(self, given: Sequence[torch.Tensor]) -> list[Kept]:
        """Return what leaves hold beside their values: those that calls were given, and those that they reach."""
        weights = {
            id(each): (f"{name}.{key}", each)
            for name, module in self._modules.items()
            for key, each in module._parameters.items()
            if each is not None
        }
        reached = {id(each): (name, each) for name, each in self._contents.tensors if id(each) not in weights}
        others = {
            id(each): (f"an argument of shape {private.sizes(each)}", each)
            for each in given
            if id(each) not in weights and id(each) not in reached
        }
        kept = [kept_beside(name, each) for name, each in weights.values() if each.is_leaf]
        kept += [kept_beside(name, each, hooks=True) for name, each in reached.values() if each.is_leaf]
        # Subclasses keep what they know of themselves at attributes.
        kept += [
            kept_beside(name, each, hooks=True, attributes=type(each) in _PLAIN)
            for name, each in others.values()
            if each.is_leaf
        ]
        return [each for some in kept for each in some]

    def changed(self) -> list[str]:
        """Return the names of what has changed since the snapshot."""
        return [*self._contents.changed(), *self.written()]

    def lost(self) -> list[str]:
        """Return the names of what has changed since the snapshot and cannot be put back."""
        beside = [each.name for each in self._beside if each.changed]
        return [*self._contents.lost(), *self.written(), *beside]

    def put_back(self) -> None:
        """Restore the snapshot, except for what is lost."""
        self._contents.restore()

    def written(self) -> list[str]:
        """Return the names of the tensors whose version has changed since the snapshot."""
        versions = private.versions(self._tensors)
        found = zip(self._contents.tensors, self._versions, versions, strict=True)
        return [name for (name, _), before, now in found if before != now]


class Snapshot:
    """All that a replay of some calls may change and does not put back by itself, as it is when this is made.

    Args:
        calls: the calls.
    """

    def __init__(self, calls: Sequence[MemberCall]) -> None:
        self._hidden = Hidden(calls)
        self._copies, self._hooks = SmallCopies(self._hidden.small()), HookState(calls)
        self.hooks_keep: list[torch.Tensor] | None = None

    def put_back(self) -> list[str]:
        """Restore it, and return names of what had changed; not of what hooks keep: see `hooks_keep`."""
        written = self._hooks.put_back()
        if written is not None:
            self.hooks_keep = [*(self.hooks_keep or []), *written]
        changed = [*(name for name, _ in self._copies.put_back()), *self._hidden.changed()]
        self._hidden.put_back()
        return changed


class HookState:
    """What the forward hooks inside some calls keep. They run again in a replay, and this puts it back afterwards.

    A hook whose own code asks `is_recomputing()` knows of replays: what it keeps stays.

    Args:
        calls: the calls.
        written: the tensors that the hooks are known to write; None where that is not known yet.
    """

    def __init__(self, calls: Iterable[MemberCall], written: Sequence[torch.Tensor] | None = None) -> None:
        modules = [module for call in calls for module in call.module.named("").values()]
        around = [module._forward_hooks | module._forward_pre_hooks for module in modules]
        around += (private.global_hooks() or {}).values()
        hooks = [hook for own in around for hook in own.values() if not _knows_of_replays(hook)]
        self._contents = Contents({"a hook": hooks}, bare=modules) if hooks else None
        if written is None and self._contents is not None:
            own = {id(each) for member in modules for each in (*member._parameters.values(), *member._buffers.values())}
            others = [named for named in self._contents.tensors if id(named[1]) not in own]
            written = [each for (_, each), total_bytes in by_size(others) if total_bytes <= MOST_COPIED_BYTES]
        self._copies = SmallCopies([("a hook's tensor", each) for each in written or ()])

    def put_back(self) -> list[torch.Tensor] | None:
        """Restore what hooks keep. Return the tensors that they wrote; None if nothing has changed."""
        changed = self._contents is not None and bool(self._contents.changed())
        if changed and self._contents is not None:
            self._contents.restore()
        written = [each for _, each in self._copies.put_back()]
        return written if changed or written else None


def _knows_of_replays(hook: Any) -> bool:
    function = getattr(hook, "__func__", hook)
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return code is not None and "is_recomputing" in names_in(code)


class Sums:
    """Checksums of tensors as they are now.

    Args:
        named: the tensors, with names.
        given: tensors that a call was given. Only writes that change no version count for them: frames check versions.
            They are held weakly, since their graph may lead back to the frame.
    """

    def __init__(self, named: Iterable[Named], given: Iterable[torch.Tensor]) -> None:
        once = {id(each): (name, each) for name, each in named if has_bytes(each)}
        self._places = Places()
        self._held = [(name, each, self._sum(each)) for name, each in once.values()]
        others = {id(each): each for each in given if id(each) not in once and has_bytes(each)}
        self._given = [(weakref.ref(each), private.version(each), self._sum(each)) for each in others.values()]
        self._places.settle()

    def changed(self) -> list[str]:
        """Return the names of those whose bits have changed. Waits once for each device."""
        now = [(name, before, self._sum(each)) for name, each, before in self._held]
        alive = [(each, version, before) for known, version, before in self._given if (each := known()) is not None]
        for each, version, before in alive:
            if private.version(each) == version:
                name = f"an argument of shape {private.sizes(each)} without a new version"
                now.append((name, before, self._sum(each)))
        self._places.settle()
        alike = all_same([(before, after) for _, before, after in now])
        return [name for (name, *_), same in zip(now, alike, strict=True) if not same]

    def _sum(self, tensor: torch.Tensor) -> Checksum | None:
        return checksum_of(tensor, self._places) if has_bytes(tensor) else None


class SmallCopies:
    """Copies of tensors' present bytes, on the host.

    Args:
        named: the tensors, with names.
    """

    def __init__(self, named: Sequence[Named]) -> None:
        self._held = [(name, each, bytes_now(each)) for name, each in named]

    def put_back(self) -> list[Named]:
        """Restore the bytes of every tensor without a new version. Return those that had changed."""
        found = [(name, each, before) for name, each, before in self._held if bytes_now(each) != before]
        for _, each, before in found:
            put_bytes(each, before)
        return [(name, each) for name, each, _ in found]


def by_size(named: Iterable[Named]) -> list[tuple[Named, int]]:
    """Return the tensors that have bytes from the smallest on, each with the total bytes up to it; no parameters.

    Those of the calls have checksums (`Hidden.weights`), and those of other modules count their writes by versions.
    """
    found = (each for each in named if not isinstance(each[1], torch.nn.Parameter) and has_bytes(each[1]))
    dense = sorted(found, key=lambda each: each[1].nbytes)
    return [*zip(dense, accumulate(each.nbytes for _, each in dense), strict=True)]


def has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes, and they define it."""
    return bool(told_by_bytes(tensor) and not tensor.is_meta and tensor.numel() and tensor.untyped_storage().nbytes())
