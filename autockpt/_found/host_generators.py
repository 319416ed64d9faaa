"""Generators that torch does not know: Python's `random` and numpy's global one.

To read Python's takes 10 microseconds. To read numpy's takes 30: numpy hands out its 624 words one by one. Their memory
could be copied in one go. But it does not tell whether numpy has a normal number in reserve, which
`numpy.random.normal` would return next.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy

_NumpyState: TypeAlias = tuple[bytes, int, int, float] | bytes
"""Words, position, whether a normal number is in reserve, and that number. Of another generator, a pickled state."""

_MERSENNE = "MT19937"
"""The bit generator that numpy uses, unless somebody sets another."""


@dataclass(frozen=True, slots=True)
class HostGenerator:
    """A generator that torch does not know.

    Attributes:
        read: returns its state.
        write: sets it.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]


def _read_numpy() -> _NumpyState:
    """Return the state of numpy's generator, in a form that compares by value."""
    state = numpy.random.get_state(legacy=False)
    if state["bit_generator"] != _MERSENNE:
        return pickle.dumps(state)
    inner = state["state"]
    return inner["key"].tobytes(), inner["pos"], state["has_gauss"], state["gauss"]


def _write_numpy(state: _NumpyState) -> None:
    if state == _read_numpy():  # as nearly always; to set it would take twice as long as to read it
        return
    if isinstance(state, bytes):
        numpy.random.set_state(pickle.loads(state))
    else:
        words, position, waits, number = state
        numpy.random.set_state((_MERSENNE, numpy.frombuffer(words, numpy.uint32), position, waits, number))


PYTHON = HostGenerator(random.getstate, random.setstate)
NUMPY = HostGenerator(_read_numpy, _write_numpy)
