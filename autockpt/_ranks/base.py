"""What the library asks of the processes that train one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

T = TypeVar("T")

Choose = Callable[[Sequence[Any]], T]
"""Makes one value out of those of all ranks, in their order. It gives the same on each, or raises the same."""


class Parted(Exception):
    """Some rank came to a round too late, so that each goes on by itself; says which."""


class Ranks(Protocol):
    """The ranks that train one model: `One`, or a `Group`."""

    @property
    def members(self) -> tuple[int, ...]:
        """Their numbers, in order."""

    @property
    def own(self) -> int:
        """The number of this one."""

    def agree(self, value: Any, choose: Choose[T], *, parting: bool = False) -> T:
        """Return what follows from the values of all ranks, the same on each.

        Args:
            value: this rank's: numbers, texts, None, lists and mappings of such.
            choose: is given those of all.
            parting: whether not to wait for long, after the first round: who is late may never come.

        Raises:
            NotApplicable: a rank does not come; says which.
            Parted: it has not come soon; on all ranks that come to this round.
        """

    def tell(self, value: Any) -> None:
        """Give this rank's value to the round that comes and wait for nobody: it comes to no other round."""

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor that has this rank's bytes."""

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        """Have a module's own parameters here inside the block; on all ranks alike, where that takes a collective."""


class One:
    """A process that trains by itself: it agrees with itself, and all is here; see `Ranks`."""

    members = (0,)
    own = 0

    def agree(self, value: Any, choose: Choose[T], *, parting: bool = False) -> T:
        return choose([value])

    def tell(self, value: Any) -> None: ...

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gathered(self, module: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()
