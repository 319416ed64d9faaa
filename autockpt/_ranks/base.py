"""What the library asks of the processes that train one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Choose = Callable[[Sequence[Any]], T]
"""Makes one value out of those of all ranks, in their order. It gives the same on each, or raises the same."""


class Agree(Protocol):
    """Agrees as `Ranks.agree` does; or also raises if a rank has left."""

    def __call__(self, value: Any, choose: Choose[T], *, parting: bool = False) -> T: ...


class Parted(Exception):
    """A rank came to a round too late, so each rank goes on by itself. The message names that rank."""


class Ranks(Protocol):
    """The ranks that train one model: `One`, or a `Group`."""

    @property
    def members(self) -> tuple[int, ...]:
        """Their numbers, in order."""

    @property
    def own(self) -> int:
        """The number of this rank."""

    def agree(self, value: Any, choose: Choose[T], *, parting: bool = False) -> T:
        """Return what `choose` makes of the values of all ranks; the same on each rank.

        Args:
            value: this rank's value: numbers, texts, None, lists and mappings of such.
            choose: is given the values of all ranks.
            parting: whether to wait only a short time, except in the first round: a late rank may never come.

        Raises:
            NotApplicable: a rank does not come; the message names it.
            Parted: a rank has not come soon enough; raised on all ranks that come to this round.
        """

    def tell(self, value: Any) -> None:
        """Give this rank's value to the next round, without waiting. This rank comes to no later round."""


class One:
    """A process that trains by itself: it agrees with itself, and holds all bytes; see `Ranks`."""

    members = (0,)
    own = 0

    def agree(self, value: Any, choose: Choose[T], *, parting: bool = False) -> T:
        return choose([value])

    def tell(self, value: Any) -> None: ...
