"""Replays in several threads that draw from generators of the host: all threads share these.

    thread 0   ├ draws: sets, draws, restores ┤
    thread 1       ├ draws as well: waits ....├ sets, draws, restores ┤
    thread 2       ├ draws nothing: reads what thread 0 found, restores only what that one leaves alone ┤

Backward runs one thread for each device, and a training may have several. No replay waits for one that draws nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .around import Generator, States, restore_states, states_of
from .host_generators import HostGenerator


class Turns:
    """Lets one replay at a time draw from generators of the host.

    An interrupt may come after any call, and leaves no lock taken: `with` enters one without a call of Python's own.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._turn: tuple[int, Mapping[Generator, Any]] | None = None  # the thread that draws, and what it will restore
        self._begun = 0

    def run(self, work: Callable[[], None]) -> None:
        """Run a replay that draws.

        Replays of other threads that draw wait until it is over. A replay inside it, in this thread, does not wait.
        """
        with self._lock:
            outer = self._turn
            try:
                if outer is None:
                    self._turn = threading.get_ident(), {}
                work()
            finally:
                self._turn = outer

    def begin(self, found: Mapping[Generator, Any]) -> None:
        """Say what a replay found. If it has its turn, it sets states from now on, and restores these as it ends."""
        turn = self._turn
        if turn is not None and turn[0] == threading.get_ident() and not turn[1]:
            self._turn = turn[0], found
            self._begun += 1  # last: who has read a state since then reads again

    def read(self, generators: Iterable[Generator]) -> States:
        """Return every generator with its state; with what another thread's replay found, where that one draws now."""
        wanted = list(generators)
        while True:
            begun, turn = self._begun, self._turn
            if turn is None or turn[0] == threading.get_ident():  # as mostly: nobody else draws
                found = states_of(wanted)
            else:
                others = turn[1]
                there = dict(states_of(each for each in wanted if each not in others))
                found = [(each, there[each] if each in there else others[each]) for each in wanted]
            if begun == self._begun:
                return found

    def restore(self, states: Mapping[Generator, Any]) -> None:
        """Set generators to the states beside them, but for those that another thread's replay will restore."""
        turn = self._turn
        if turn is not None and turn[0] == threading.get_ident():
            restore_states(states)
            return
        try:
            if not self._lock.acquire(blocking=False) and (others := self._of_others()):
                states = {each: state for each, state in states.items() if each not in others}
            restore_states(states)
        finally:
            # What `acquire` returned may have been lost to an interrupt, so it is asked by releasing.
            try:  # noqa: SIM105 - `suppress` would be a call before the lock is released
                self._lock.release()
            except RuntimeError:
                pass

    def _of_others(self) -> Mapping[Generator, Any]:
        turn = self._turn
        return {} if turn is None or turn[0] == threading.get_ident() else turn[1]


TURNS = Turns()
"""Those of this process, as its generators are."""


def draws_on_host(states: States) -> bool:
    """Whether any of the states that a replay sets is that of a generator of the host."""
    return any(isinstance(generator, HostGenerator) or generator.device.type == "cpu" for generator, _ in states)
