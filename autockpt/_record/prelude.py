"""What a loop allocates before it calls the model: targets, zeroed sums, tensors of a model that runs first.

    stood   allocated before the step and freed in it       64 K, 4         seen by weak references, with lifetimes
    made    allocated after the step, until the next one    64 K, 4, 8 M    seen on the tape, which goes on until then

What was made belongs to the next step's kind. It is matched by size with what stood: the 64 K and the 4 have the
lifetimes seen in this step, and the 8 M, which have no match, are taken to stay allocated through the whole step. If
something that stood in the loop's first step has no match in what was made, it is from before the loop: it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .._device import Event

NUMBER_BYTES = 512
"""What one number takes on a device; on a host it takes less. Such small tensors do not count: a loop keeps some of
every step, as losses for its log, and does not free them when the next step begins."""


def made_since(events: Iterable[Event], last: int, others: frozenset[int]) -> list[int]:
    """Return the sizes of what was allocated since a step was over and is still allocated as the next one begins.

    Args:
        events: the events of the tape.
        last: the marker where the step is over.
        others: storages that count elsewhere: the arguments of the next forward, gradients.
    """
    over, alive = False, dict[int, int]()
    for event in events:
        if event.kind == "mark":
            over = over or event.key == last
        elif event.kind == "free":
            alive.pop(event.key, None)
        elif over:
            alive[event.key] = event.bytes
    return [size for key, size in alive.items() if key not in others and size > NUMBER_BYTES]


def alike(stood: Mapping[int, int], made: Iterable[int]) -> dict[int, int]:
    """Return those storages of `stood` (sizes by storage) that have a match in `made`: an equal size, used once."""
    left, found = Counter(made), dict[int, int]()
    for key, size in stood.items():
        if left[size] > 0:
            left[size] -= 1
            found[key] = size
    return found


def unlike_bytes(made: Iterable[int], stood: Iterable[int]) -> int:
    """Return the bytes of the sizes in `made` that have no match in `stood`."""
    return sum((Counter(made) - Counter(stood)).elements())
