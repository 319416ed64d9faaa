"""Who returned which tensor: an argument is known by the very object, unchanged since, and not by its bytes."""

from __future__ import annotations

import weakref

import torch

from .. import _torch_private as private
from .._calls.values import tensors
from .marks import Sources
from .tape import Tape


class Returned:
    """What calls and functions have returned so far.

    Args:
        tape: names storages.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, Sources]] = {}

    def _storages(self, value: object) -> dict[int, list[torch.Tensor]]:
        """Return the tensors inside `value` by their storage, in order."""
        found: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors(value):
            if key := self._tape.key(tensor):
                found.setdefault(key, []).append(tensor)
        return found

    def given(self, arguments: object) -> tuple[tuple[Sources, ...], tuple[int, ...]]:
        """Return where what a call is given comes from, and its storages."""
        storages = self._storages(arguments)
        return tuple(map(self._sources, storages.values())), tuple(storages)

    def by(self, sources: Sources, output: object) -> tuple[int, ...]:
        """Remember who returned these very objects, and in which version; return their storages."""
        storages = self._storages(output)
        for tensor in (tensor for same_storage in storages.values() for tensor in same_storage):
            known = self._sources([tensor])
            both = Sources((*known.calls, *sources.calls), (*known.functions, *sources.functions))
            self._known[id(tensor)] = (weakref.ref(tensor), private.version(tensor), both)
        return tuple(storages)

    def _sources(self, objects: list[torch.Tensor]) -> Sources:
        """Who returned every one of these very objects, unchanged since."""
        chains: list[Sources] = []
        for tensor in objects:
            reference, version, sources = self._known.get(id(tensor), (None, 0, Sources()))
            alive = reference is not None and reference() is tensor and version == private.version(tensor)
            chains.append(sources if alive else Sources())
        calls, functions = (set.intersection(*map(set, chain)) for chain in zip(*chains, strict=True))
        return Sources(tuple(sorted(calls)), tuple(sorted(functions)))
