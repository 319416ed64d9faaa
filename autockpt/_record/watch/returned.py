"""Which call or function returned a tensor. Tensors are told apart as Python objects with versions, not by values."""

from __future__ import annotations

import weakref

import torch

from ..._calls.values import tensors
from ..._torch import private
from .copies import sum_of
from .marks import Sources
from .storage_tape import Tape


class Returned:
    """Remembers what calls and functions have returned so far.

    Args:
        tape: gives the keys of storages.
        summed: whether there are checksums.
    """

    def __init__(self, tape: Tape, *, summed: bool) -> None:
        self._tape, self._summed = tape, summed
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, Sources]] = {}

    def _storages(self, value: object) -> dict[int, list[torch.Tensor]]:
        """Return the tensors inside `value` by their storage, in order."""
        found: dict[int, list[torch.Tensor]] = {}
        for tensor in private.parts(tensors(value)):
            if key := self._tape.key(tensor):
                found.setdefault(key, []).append(tensor)
        return found

    def given(self, arguments: object) -> tuple[tuple[tuple[Sources, ...], ...], tuple[int, ...]]:
        """Return the distinct `Sources` of each storage's tensor objects among the arguments, and the storages."""
        storages = self._storages(arguments)
        ways = (tuple(dict.fromkeys(map(self._way, objects))) for objects in storages.values())
        return tuple(ways), tuple(storages)

    def sums(self, arguments: object) -> tuple[int, ...]:
        """Return a checksum of each storage among the arguments; see `sum_of`. None where there are none."""
        return tuple(map(sum_of, self._storages(arguments).values())) if self._summed else ()

    def by(self, sources: Sources, output: object) -> tuple[int, ...]:
        """Remember that `sources` returned these tensor objects, in this version; return their storages."""
        storages = self._storages(output)
        for tensor in (tensor for same_storage in storages.values() for tensor in same_storage):
            known = self._sources(tensor)
            calls, functions = ({*one, *other} for one, other in zip(known[:2], sources[:2], strict=True))
            both = Sources(tuple(sorted(calls)), tuple(sorted(functions)))
            self._known[id(tensor)] = (weakref.ref(tensor), private.version(tensor), both)
        return tuple(storages)

    def _way(self, argument: torch.Tensor) -> Sources:
        """Return the sources of an argument, with whether it has a graph."""
        return self._sources(argument)._replace(graph=argument.grad_fn is not None)

    def _sources(self, tensor: torch.Tensor) -> Sources:
        """Return the sources of this very tensor object, or of what a unit of FSDP2 was given by its caller.

        None if it was changed since.
        """
        reference, version, sources = self._known.get(id(tensor), (None, 0, Sources()))
        if reference is not None and reference() is tensor and version == private.version(tensor):
            return sources
        if (before := private.given_to_unit(tensor)) is not None:
            for reference, version, sources in self._known.values():
                made = reference()
                if made is not None and (made.grad_fn, made.output_nr) == before and version == private.version(made):
                    return sources
        return Sources()
