"""Replays in several threads that draw from generators of the host: all threads share these.

    thread 0   ├ draws: sets, draws, restores ┤
    thread 1       ├ draws as well: waits ....├ sets, draws, restores ┤
    thread 2       ├ draws nothing: reads what thread 0 found, restores only what that one leaves alone ┤

Backward runs one thread for each device, and a training may have several. No replay waits for one that draws nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .around import Generator, States, restore_states, states_of
from .host_generators import HostGenerator


class Turns:
    """Lets one replay at a time draw from generators of the host."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread = 0  # that of the replay that draws now
        self._found: Mapping[Generator, Any] = {}  # what that replay found, and will restore
        self._begun = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Let no other thread's replay draw meanwhile."""
        with self._lock:
            if self._thread:  # a replay inside one that draws: what that one found is what others read
                yield
                return
            self._thread = threading.get_ident()
            try:
                yield
            finally:
                self._found, self._thread = {}, 0

    def begin(self, found: Mapping[Generator, Any]) -> None:
        """Say what a replay found. If it has its turn, it sets states from now on, and restores these as it ends."""
        if self._thread == threading.get_ident() and not self._found:
            self._found = found
            self._begun += 1  # last: who has read a state since then reads again

    def read(self, generators: Iterable[Generator]) -> States:
        """Return every generator with its state; with what another thread's replay found, where that one draws now."""
        wanted = list(generators)
        while True:
            begun, others = self._begun, self._of_others()
            there = dict(states_of(each for each in wanted if each not in others))
            if begun == self._begun:
                return [(each, there[each] if each in there else others[each]) for each in wanted]

    def restore(self, states: Mapping[Generator, Any]) -> None:
        """Set generators to the states beside them, but for those that another thread's replay will restore."""
        mine = self._lock.acquire(blocking=False)
        try:
            others = {} if mine else self._of_others()
            restore_states({each: state for each, state in states.items() if each not in others})
        finally:
            if mine:
                self._lock.release()

    def _of_others(self) -> Mapping[Generator, Any]:
        return {} if self._thread == threading.get_ident() else self._found


TURNS = Turns()
"""Those of this process, as its generators are."""


def draws_on_host(states: States) -> bool:
    """Whether any of the states that a replay sets is that of a generator of the host."""
    return any(isinstance(generator, HostGenerator) or generator.device.type == "cpu" for generator, _ in states)
