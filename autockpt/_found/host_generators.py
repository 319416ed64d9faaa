"""Generators that torch does not know: Python's `random` and numpy's global one.

To read Python's takes 10 microseconds, to read numpy's 30: it hands out its 624 words one by one. The memory where they
lie would be copied in one, but does not say whether a normal number waits, which `numpy.random.normal` draws first.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy

_NumpyState: TypeAlias = tuple[bytes, int, int, float] | bytes
"""Words, position, whether a normal number waits, and that number; of another bit generator its pickled state."""

_MERSENNE = "MT19937"
"""The bit generator that numpy has, unless somebody puts another there."""


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
    """Return the state of numpy's generator, as what compares by value."""
    state = numpy.random.get_state(legacy=False)
    if state["bit_generator"] != _MERSENNE:
        return pickle.dumps(state)
    inner = state["state"]
    return inner["key"].tobytes(), inner["pos"], state["has_gauss"], state["gauss"]


def _write_numpy(state: _NumpyState) -> None:
    if state == _read_numpy():  # as nearly always: to set it takes twice as long
        return
    if isinstance(state, bytes):
        numpy.random.set_state(pickle.loads(state))
    else:
        words, position, waits, number = state
        numpy.random.set_state((_MERSENNE, numpy.frombuffer(words, numpy.uint32), position, waits, number))


PYTHON = HostGenerator(random.getstate, random.setstate)
NUMPY = HostGenerator(_read_numpy, _write_numpy)
