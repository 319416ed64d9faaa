"""A stash that steps use in turn, so that its memory is allocated once: pinning ten gigabytes takes four seconds.

    recorded    timed    planned, rehearsed
    ├─ hold ────┼─ hold ─┼─ open ── backward over ─┤ let_go    memory is freed with the last tensor that waits

If somebody holds a step's graph, its tensors still wait after that step. They stay where they are, and the next step
uses the rest.
"""

from __future__ import annotations

import torch

from . import open_stash
from .base import Stash


class HeldStashes:
    """Opens stashes for the steps of one model, and may hold them: one for each kind of device."""

    def __init__(self) -> None:
        self._held: dict[str, Stash] = {}

    @property
    def holding(self) -> bool:
        """Whether any is held."""
        return bool(self._held)

    def hold(self, device: torch.device, stash: Stash) -> None:
        """Hold a stash for a device from now on."""
        self._held[device.type] = stash

    def open(self, device: torch.device) -> Stash:
        """Return the held stash for a device, or else a new one, which closes with its last user.

        Raises:
            NoRoom: there is no temporary folder.
        """
        return self._held.get(device.type) or open_stash(device)

    def let_go(self) -> None:
        """Hold none: each closes with the last tensor that waits in it."""
        self._held.clear()
