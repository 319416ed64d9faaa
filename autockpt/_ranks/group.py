"""Ranks that agree, through the store of their process group: no collective runs, and no device is asked.

    rank 0   set 7/0 ─ count ─▶ not all: wait for "7" ─────▶ both values ─▶ choose ─▶ the same
    rank 1             set 7/1 ─ count ─▶ all: say "7 held" ▶ both values ─▶ choose ─▶ the same

Each rank that comes adds to the round's count. The last one publishes that the round is held: all have come. The key
of a value has the number of the round and of the rank. A rank that waits in vain adds `GAVE_UP` to the same count. The
store adds in one operation, so all ranks see the same end of a round: it is held, or they part.

If replays run collectives there is a round in each step, and nearly always each rank says what it said in the last
one. Such a rank sets no value, and does not add `CHANGED`. If no rank has changed its value, the last one publishes
that, and nobody reads a value. Such a round is two or three operations of the store for each rank, and the looks for
its end, however many ranks there are.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import torch

from .._data.errors import NotApplicable
from .._torch import private
from .base import Choose, Parted, T

ABSENT = (
    "{0} did not come within {1:.0f} s to where all ranks agree on their plan, so there is none from now on. All ranks "
    "that train one model apply to it alike and take the same steps; {0} may have failed, or be slower than the "
    "timeout of its process group."
)

SILENT = (
    "the store of the process group does not answer ({0}). Ranks agree on their plan through it, so there is no plan "
    "from now on. The process that holds the store has ended; as a rule it is rank 0's."
)

PARTED = (
    "{0} did not come within {1:.3g} s to a step that other ranks have begun, and there is no first plan yet. Ranks "
    "take unequal numbers of steps (join(), unequal microbatches under no_sync), or one is that much slower. From now "
    "on each rank plans by itself, and an error of one rank is not raised on the others."
)

PATIENCE_SECONDS = 20.0
"""How long a step that begins waits for ranks that have begun steps before. Such a rank may wait for this one in a
collective, and would then never come. If it is only slow, little is lost."""

NAP_SECONDS_PER_RANK, LONGEST_NAP_SECONDS = 1e-5, 0.1
"""Between two looks at the store. The first nap grows with the ranks, so that the store is asked no more than a hundred
thousand times a second. Each nap is twice as long as the one before it."""

MOMENT_SECONDS = 1.0
"""A rank that waits for longer sets its value, so that others see that it has come."""

CHANGED, GAVE_UP = 1 << 20, 1 << 40
"""What is added to a round's count besides the 1 of each rank that comes: `CHANGED` by a rank that says something else
than in the round before, `GAVE_UP` by a rank that stops waiting. Each is far above the sum of the smaller ones that all
ranks can add."""


class Group:
    """The ranks that train one model; see `Ranks`.

    Args:
        members: their numbers in the default process group, in order. This process is one of them.

    A process may open several groups in turn. All ranks open them in the same order.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members, self.own = members, private.own_rank()
        self._store = private.default_store()
        place = f"autockpt/{'-'.join(map(str, members))}"
        # Each rank counts its own groups. All ranks open equally many, so the place is the same.
        self._place = f"{place}/{self._store.add(f'{place}/opened by {self.own}', 1)}"
        self._round = 0
        self._over = ""  # what was read from the store last: how a round ended
        self._said: Any = None  # in the last round that this rank came to
        self._every: list[Any] = []  # what all ranks said in the last round; empty where that is not known
        self._set: list[int] = []  # rounds in which the store has a value of this rank's

    def agree(self, value: Any, choose: Choose[T], *, parting: bool = False) -> T:
        number, every = self._round, self._every
        try:
            outcome = self._come(value)
            self._every = []
            if (outcome or self._wait(number, PATIENCE_SECONDS if parting and number else None)) == "held":
                self._set_value(number, value)
                every = [msgspec.json.decode(self._store.get(self._key(number, rank))) for rank in self.members]
            while self._set and self._set[0] < number:  # all have come to this round, so nobody reads those before it
                self._store.delete_key(self._key(self._set.pop(0), self.own))
        except torch.distributed.DistError as error:
            raise NotApplicable(SILENT.format(error)) from error
        self._every = every
        return choose(every)

    def tell(self, value: Any) -> None:
        if self._round:
            self._settle(self._round - 1)
        self._set = []  # an interrupt may have come as this rank had set its value of the next round
        self._every = []  # so that `_come` sets the value: this rank does not wait, and could not set it later
        self._come(value)

    def _come(self, value: Any) -> str:
        """Come to the next round. Return how it ended if this rank is the last one, else an empty string.

        It is "held", or "same" if no rank has changed its value. This is published too.
        """
        number, changed = self._round, not self._every or value != self._said
        if changed:
            self._set_value(number, value)
        # After an interrupt up to here `tell` comes to this round, later to the next one. No line may come in between.
        self._round, self._said = number + 1, value
        return self._publish(number, self._store.add(self._key(number, "came"), 1 + changed * CHANGED))

    def _settle(self, number: int) -> None:
        """Do in a round what an interrupt may have kept this rank from: set the value, and publish how it ended."""
        self._set_value(number, self._said)
        self._publish(number, self._store.add(self._key(number, "came"), 0))

    def _publish(self, number: int, count: int) -> str:
        """Publish and return how a round ended by its count; return an empty string if it has not."""
        if count >= GAVE_UP or count % CHANGED < len(self.members):
            return ""
        outcome = "held" if count >= CHANGED else "same"
        self._store.set(f"{self._place}/over", f"{number} {outcome}")
        if number:
            self._store.delete_key(self._key(number - 1, "came"))
        return outcome

    def _set_value(self, number: int, value: Any) -> None:
        """Set this rank's value of a round, unless it is set. Others then also see that this rank has come."""
        if number not in self._set:
            self._store.set(self._key(number, self.own), msgspec.json.encode(value))
            self._set.append(number)

    def _key(self, number: int, what: int | str | None = None) -> str:
        return f"{self._place}/{number}" if what is None else f"{self._place}/{number}/{what}"

    def _wait(self, number: int, patience_seconds: float | None) -> str:
        """Wait until all ranks have come to a round.

        Args:
            number: of the round.
            patience_seconds: when to part with ranks that have not come; None to wait for the process group's timeout.

        Returns:
            How the round ended, as `_come`.

        Raises:
            NotApplicable: a rank has not come.
            Parted: a rank has not come within the patience, of this rank or of another one that waited.
        """
        timeout_seconds = self._store.timeout.total_seconds()
        if patience_seconds is not None and not self._over_within(number, min(patience_seconds, timeout_seconds)):
            gave_up, count = divmod(self._store.add(self._key(number, "came"), GAVE_UP), GAVE_UP)
            if gave_up == 1 and count % CHANGED < len(self.members):
                words = PARTED.format(self._absent(number), patience_seconds)
                self._store.set(f"{self._place}/over", f"{number} parted {words}")
        if not self._over_within(number, timeout_seconds):
            raise NotApplicable(ABSENT.format(self._absent(number), timeout_seconds))
        outcome, _, words = self._over.partition(" ")[2].partition(" ")
        if words:
            raise Parted(words)
        return outcome

    def _over_within(self, number: int, seconds: float) -> bool:
        """Wait until the store says how a round ended. Return whether it does so in time."""
        moment_seconds = min(MOMENT_SECONDS, seconds)
        if self._is_over(number, moment_seconds):
            return True
        self._set_value(number, self._said)  # a rank that waits is not named as absent
        return self._is_over(number, seconds - moment_seconds)

    def _is_over(self, number: int, seconds: float) -> bool:
        """Whether the store says within so many seconds how a round ended.

        This looks again and again: a KeyboardInterrupt does not end the store's own wait.
        """
        ends, nap_seconds = time.monotonic() + seconds, NAP_SECONDS_PER_RANK * len(self.members)
        while not self._hears_of(number):
            if time.monotonic() >= ends:
                return False
            time.sleep(min(nap_seconds, LONGEST_NAP_SECONDS))
            nap_seconds *= 2
        return True

    def _hears_of(self, number: int) -> bool:
        """Look once whether the store says how a round ended."""
        key = f"{self._place}/over"
        if self._over or self._store.check([key]):
            self._over = self._store.get(key).decode()
        return bool(self._over) and int(self._over.partition(" ")[0]) >= number

    def _absent(self, number: int) -> str:
        """Name the ranks that have not come to a round."""
        absent = [rank for rank in self.members if not self._store.check([self._key(number, rank)])]
        return f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
