"""The events of a tape that belong to one step: what outlives it is left behind, and what comes later is not of it."""

from __future__ import annotations

from collections.abc import Iterable

from .._device import Event


class Excerpt:
    """The events of a tape that belong to one step.

    Args:
        stood: storages that are allocated as the step begins, with their sizes.

    Attributes:
        events: the events so far.
        live: for each live storage, the index of its allocation in `events`.
        over: whether the step is over.
    """

    def __init__(self, stood: Iterable[tuple[int, int]]) -> None:
        self.events = [Event("alloc", key, size) for key, size in stood]
        self.live = {event.key: place for place, event in enumerate(self.events)}
        self.over = False

    def places(self, keys: Iterable[int]) -> list[int]:
        """Return the indices of the allocations of those storages that are alive."""
        return [self.live[key] for key in keys if key in self.live]

    def take(self, event: Event) -> None:
        """Add the next event of the tape. Once the step is over, add only frees of its storages."""
        went = event.kind == "free" and self.live.pop(event.key, None) is not None
        if event.kind == "alloc" and not self.over:
            self.live[event.key] = len(self.events)
        if went or not self.over:  # a storage that is freed later is no workspace that an operator keeps
            self.events.append(event)
