"""A descent: runs all parts of a frame except the last again, and keeps only the results that later parts take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..._calls.found.held import BOUNDARY, Detached, Ref
from ..._calls.values import tensors
from ..._data.errors import ReplayError
from ..._torch import private
from ..frames.frame import Frame
from ..frames.replay import Replay

GIVEN = "what a part of a replay is given"
"""What an error calls such a tensor, if it was changed in place."""

TAKES_GRADIENT = "takes a gradient in its own forward, for which nothing is saved where a replay goes in parts"


class Descent(Replay):
    """Runs all parts of a frame except the last.

    Grad mode is on, so that the kernels are those of forward. But nothing is held of what autograd saves.

    Args:
        frame: the frame.
        last: number of the last slot that is to be filled.
        begins: number of the first call of each part, except the first part.

    Attributes:
        begins: the same.
        stop: number of the first call after the last part.
        given: the results of calls that later parts take.
    """

    def __init__(self, frame: Frame, last: int, begins: list[int]) -> None:
        super().__init__(frame, last, -1)
        self.begins, self.stop = begins, len(self._calls)
        self.given: dict[Ref, Detached] = {}
        self._wanted = _given_to_parts(self._calls, begins)
        self._calls = self._calls[: begins[-1]]

    def _keep(self, number: int, result: Any) -> None:
        for leaf, tensor in enumerate(tensors(result)):
            if (ref := Ref(number, leaf)) in self._wanted:
                self.given[ref] = Detached(tensor, GIVEN)
        super()._keep(number, result)

    @staticmethod
    @private.never_compiled
    def _pack(replay: Callable[[], Any], tensor: Tensor) -> None:
        """Count a saved tensor of a replay, and hold nothing of it."""
        self: Descent = replay()  # while it runs, it is alive
        self._next += 1
        if self.call.end is not None and self._next > self.call.end:
            self._stop("saved more tensors than its forward did")

    @staticmethod
    @private.never_compiled
    def _unpack(_: None) -> Tensor:  # type: ignore[override]
        raise ReplayError(TAKES_GRADIENT)


def _given_to_parts(calls: list[Any], begins: list[int]) -> set[Ref]:
    """Return which results of calls are arguments of calls in later parts."""
    starts, wanted = iter([*begins, len(calls)]), set[Ref]()
    first, stop = 0, next(starts)
    for number, call in enumerate(calls):
        if number == stop:
            first, stop = stop, next(starts)
        wanted.update(ref for ref in call.refs if BOUNDARY < ref.call < first)
    return wanted
