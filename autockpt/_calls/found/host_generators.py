"""Generators that torch does not know: Python's `random` and numpy's global one.

To read Python's takes 10 microseconds. To read numpy's takes 30: numpy hands out its 624 words one by one. Their memory
can be compared in one go. It does not tell whether numpy has a normal number in reserve, which `numpy.random.normal`
would return next. But one that had none has none as long as it does not move.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
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
        is_at: whether it is still in a state that was read.
    """

    read: Callable[[], Any]
    write: Callable[[Any], None]
    is_at: Callable[[Any], bool]


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


def _is_numpy_at(state: _NumpyState) -> bool:
    if isinstance(state, tuple) and not state[2]:
        bits = numpy.random.mtrand.get_bit_generator()
        memory = state[0] + state[1].to_bytes(4, sys.byteorder)
        # If it were laid out in another way, all of it would be read.
        if type(bits) is numpy.random.MT19937 and ctypes.string_at(bits.ctypes.state_address, len(memory)) == memory:
            return True
    return bool(state == _read_numpy())


def _is_python_at(state: tuple[Any, ...]) -> bool:
    return random.getstate() == state


PYTHON = HostGenerator(random.getstate, random.setstate, _is_python_at)
NUMPY = HostGenerator(_read_numpy, _write_numpy, _is_numpy_at)
