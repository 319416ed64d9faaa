"""Ranks that agree, through the store of their process group: no collective runs, and no device is asked.

    rank 0   set 7/0 ─ count ─▶ not all: wait for "7" ─────▶ both values ─▶ choose ─▶ the same
    rank 1             set 7/1 ─ count ─▶ all: say "7 held" ▶ both values ─▶ choose ─▶ the same

The last one that comes says so; the key of a value has the number of the round and of the rank. Who waits in vain
counts `GAVE_UP` in one step with everybody's own: so all hear the same of a round, that it was held or that they have
parted.

Where replays speak there is a round in each step, and nearly always each rank says what it said in the last one. Such
a rank sets no value, and counts no `CHANGED`. If none has changed, the last one that comes says so, and nobody reads a
value: a round is two or three operations of the store and looks for its end, however many ranks there are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import nn

from .. import _torch_private as private
from .._data.errors import NotApplicable
from .base import Choose, Parted, T
from .circles import Circle, Round, circle_of, waiting, words_of

ABSENT = (
    "{0} did not come within {1:.0f} s to where all ranks agree on their plan, so there is none from now on. All ranks "
    "that train one model apply to it alike and take the same steps; {0} may have failed, or be slower than the "
    "timeout of its process group."
)

SILENT = (
    "the store of the process group, through which ranks agree on their plan, does not answer ({0}), so there is none "
    "from now on. The process that holds it, rank 0's as a rule, has ended."
)

PARTED = (
    "{0} did not come within {1:.3g} s to a step that others have begun before the first plan is made: ranks take "
    "unequal numbers of steps (join(), unequal microbatches under no_sync), or one is that much slower. From now on "
    "each plans by itself, and an error of one is no error of the others."
)

PATIENCE_SECONDS = 20.0
"""How long a step that begins waits for ranks that have begun steps before. They may wait in a collective for this one,
so that nobody would ever come; and where one is only slow, little is lost."""

NAP_SECONDS_PER_RANK, LONGEST_NAP_SECONDS = 1e-5, 0.1
"""Between two looks at the store. The first nap grows with the ranks, so that the store is asked no more than a hundred
thousand times a second. Each nap is twice as long as the one before it."""

MOMENT_SECONDS = 1.0
"""Who waits for longer says where, and looks whether somebody there waits for this rank."""

CHANGED, GAVE_UP = 1 << 20, 1 << 40
"""What a rank counts besides itself if it says something else than in the round before, and what one counts that waits
for a round no more. Each is far above what all ranks count of the one before it."""


class Group:
    """The ranks that train one model; see `Ranks`.

    Args:
        members: their numbers in the default process group, in order. This process is one of them.

    A process may open several in turn, on all ranks in the same order.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members, self.own = members, private.own_rank()
        self._store = private.default_store()
        place = f"autockpt/{'-'.join(map(str, members))}"
        # Each rank counts for itself, and they open as many.
        self._place = f"{place}/{self._store.add(f'{place}/opened by {self.own}', 1)}"
        self._round = 0
        self._over = ""  # what the store was heard to say last of a round that is over
        self._said: Any = None
        self._every: list[Any] = []  # what all ranks said in the last round; empty where that is not known
        self._set: list[int] = []  # rounds in which the store has a value of this rank's

    def agree(self, value: Any, choose: Choose[T], *, parting: bool = False) -> T:
        number, every = self._round, self._every
        try:
            outcome = self._come(value)
            self._every = []
            if (outcome or self._wait(number, PATIENCE_SECONDS if parting and number else None)) == "held":
                self._set_value(number)
                every = [msgspec.json.decode(self._store.get(self._key(number, rank))) for rank in self.members]
            while self._set and self._set[0] < number:  # all have come to this round, so nobody reads those before it
                self._store.delete_key(self._key(self._set.pop(0), self.own))
        except torch.distributed.DistError as error:
            raise NotApplicable(SILENT.format(error)) from error
        self._every = every
        return choose(every)

    def tell(self, value: Any) -> None:
        self._every = []  # it does not come back to set a value, so it does now
        self._come(value)

    def _come(self, value: Any) -> str:
        """Come to the next round; if all others have, say and return that it is "held", or the "same" as before."""
        number, self._round = self._round, self._round + 1
        changed = not self._every or value != self._said
        self._said = value
        if changed:
            self._set_value(number)
        count = self._store.add(self._key(number, "came"), 1 + changed * CHANGED)
        if count >= GAVE_UP or count % CHANGED < len(self.members):
            return ""
        outcome = "held" if count >= CHANGED else "same"
        self._store.set(f"{self._place}/over", f"{number} {outcome}")
        if number:
            self._store.delete_key(self._key(number - 1, "came"))
        return outcome

    def _set_value(self, number: int) -> None:
        """Have others see what this rank says in a round, and that it has come, unless they can."""
        if number not in self._set:
            self._store.set(self._key(number, self.own), msgspec.json.encode(self._said))
            self._set.append(number)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        (here,) = private.parts([tensor])
        return here

    @contextmanager
    def gathered(self, module: nn.Module) -> Iterator[None]:
        unit = private.unit_of(module)
        brought = unit is not None and private.gather(unit)
        try:
            yield
        finally:
            if brought:
                private.let_go(unit)

    def _key(self, number: int, what: int | str | None = None) -> str:
        return f"{self._place}/{number}" if what is None else f"{self._place}/{number}/{what}"

    def _wait(self, number: int, patience_seconds: float | None) -> str:
        """Wait until all ranks have come to a round: as long as the process group waits for anything, or less.

        Returns:
            As `_come`.

        Raises:
            NotApplicable: one has not, or waits for this one elsewhere.
            Parted: one has not, and there was a patience; or another rank has parted with this one in this round.
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
            raise (Parted if outcome == "parted" else NotApplicable)(words)
        return outcome

    def _over_within(self, number: int, seconds: float) -> bool:
        """Wait until it is known what has become of a round; whether that is so in time."""
        moment_seconds = min(MOMENT_SECONDS, seconds)
        if self._is_over(number, moment_seconds):
            return True
        self._set_value(number)
        ends, place = time.monotonic() + seconds - moment_seconds, Round(self._key(number), self.members)
        stands: Circle = ()
        until = 0.0
        with waiting(self._store, self.own, place):
            while (left_seconds := ends - time.monotonic()) > 0:
                if self._is_over(number, min(MOMENT_SECONDS, left_seconds)):
                    return True
                circle = circle_of(self._store, self.own)
                if circle != stands:
                    stands, until = circle, time.monotonic() + PATIENCE_SECONDS
                elif circle and time.monotonic() >= until:  # a rank may have a thread that comes elsewhere meanwhile
                    for _, each in circle:
                        theirs, _, begun = each.begin.rpartition("/")
                        self._store.set(f"{theirs}/over", f"{begun} circle {words_of(circle)}")
        return self._is_over(number, 0)

    def _is_over(self, number: int, seconds: float) -> bool:
        """Whether it becomes known so soon what has become of a round.

        It looks again and again: a wait of the store's own would hear no KeyboardInterrupt before its end.
        """
        ends, nap_seconds = time.monotonic() + seconds, NAP_SECONDS_PER_RANK * len(self.members)
        while not self._hears_of(number):
            if time.monotonic() >= ends:
                return False
            time.sleep(min(nap_seconds, LONGEST_NAP_SECONDS))
            nap_seconds *= 2
        return True

    def _hears_of(self, number: int) -> bool:
        """Look once whether it is known what has become of a round."""
        key = f"{self._place}/over"
        if self._over or self._store.check([key]):
            self._over = self._store.get(key).decode()
        return bool(self._over) and int(self._over.partition(" ")[0]) >= number

    def _absent(self, number: int) -> str:
        """Name the ranks that have not come to a round."""
        absent = Round(self._key(number), self.members).absent(self._store)
        return f"rank{'s' if len(absent) > 1 else ''} {', '.join(map(str, absent))}"
