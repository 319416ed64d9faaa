"""Who returned which tensor: an argument is known by the very object, unchanged since, and not by its bytes."""

from __future__ import annotations

import weakref

import torch

from .. import _torch_private as private
from .._calls.values import tensors
from .marks import Sources
from .storage_tape import Tape


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
        for tensor in private.parts(tensors(value)):
            if key := self._tape.key(tensor):
                found.setdefault(key, []).append(tensor)
        return found

    def given(self, arguments: object) -> tuple[tuple[tuple[Sources, ...], ...], tuple[int, ...]]:
        """Return in which ways each storage comes to a call, and these storages."""
        storages = self._storages(arguments)
        ways = (tuple(dict.fromkeys(map(self._way, objects))) for objects in storages.values())
        return tuple(ways), tuple(storages)

    def by(self, sources: Sources, output: object) -> tuple[int, ...]:
        """Remember who returned these very objects, and in which version; return their storages."""
        storages = self._storages(output)
        for tensor in (tensor for same_storage in storages.values() for tensor in same_storage):
            known = self._sources(tensor)
            calls, functions = ({*one, *other} for one, other in zip(known[:2], sources[:2], strict=True))
            both = Sources(tuple(sorted(calls)), tuple(sorted(functions)))
            self._known[id(tensor)] = (weakref.ref(tensor), private.version(tensor), both)
        return tuple(storages)

    def _way(self, argument: torch.Tensor) -> Sources:
        """In which way an argument comes to a call."""
        return self._sources(argument)._replace(graph=argument.grad_fn is not None)

    def _sources(self, tensor: torch.Tensor) -> Sources:
        """Who returned this very object, unchanged since."""
        reference, version, sources = self._known.get(id(tensor), (None, 0, Sources()))
        alive = reference is not None and reference() is tensor and version == private.version(tensor)
        return sources if alive else Sources()
