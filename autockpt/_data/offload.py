"""Where tensors may wait off the device between forward and backward, and how fast they get there. No torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from ..solvers.errors import BudgetError
from ..solvers.units import format_bytes, parse_bytes, shown
from .text.keys import patterns

Moved: TypeAlias = Literal["boundary", "saved"]
"""What of a segment waits elsewhere from forward to backward: its boundary, or what its one call saved."""

AS_IT_WAS: frozenset[Moved] = frozenset({"saved"})
"""Where these wait nothing runs again: backward gets what forward saved."""

HOST = "host"
"""The host's memory, for tensors of a device; anything else is a folder."""

SHARD = "shard"
"""No other place: of what all ranks have that share layers each keeps a part. They gather the parts before a replay."""

ASSUMED_HOST_RATE = 25e9
"""Bytes a second that a copy to the host and back is taken to reach where nothing was measured: PCIe 4.0, 16 lanes."""

ASSUMED_FOLDER_RATE = 1e9
"""The same for a file."""

ASSUMED_SHARD_RATE = 50e9
"""The same for parts of several ranks, which they gather: a share of what NVLink carries."""

ASSUMED_MOVE_SECONDS = 1e-4
"""What a tensor takes there and back besides its bytes, where nothing was measured."""

MOST_CHARACTERS = 4096


class Offload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tensors wait, and the rates that plans price the way there and back with.

    Attributes:
        where: ``host``, or a folder, which takes a file without a name; or ``shard``, which is no place: of a boundary
            that ranks have alike (tensor parallelism) each keeps a part, and they gather all parts for the replay.
        write_rate: bytes a second on the way there.
        read_rate: bytes a second on the way back.
        move_seconds: what each tensor takes besides, both ways together.
        measured: whether the rates were measured here, and neither given nor assumed.
        assumed: whether they were assumed, so that what was measured takes their place.
        saved: patterns of calls of which what they save must wait, as those of ``keep=`` in `apply`.
        boundary: patterns of calls that must be recomputed, each by itself, from a boundary that waits. FairScale's
            ``checkpoint_wrapper(module, offload_to_cpu=True)`` is one.
        ranks: of ``shard``, how many ranks have a part; 0 where that is not known yet.
        group: of ``shard``, the name of the process group of these ranks; empty for that of the model's mesh.

    Raises:
        BudgetError: a rate is not above 0, the place is none, a time is below 0, or what calls save is to be in parts.
        PinError: a pattern is no text.

    Example:
        >>> import autockpt
        >>> autockpt.Offload.of("host@25GB/s").seconds(25 * 10**9, 1)
        2.0001
    """

    where: str
    write_rate: float
    read_rate: float
    move_seconds: float = ASSUMED_MOVE_SECONDS
    measured: bool = False
    assumed: bool = False
    saved: tuple[str, ...] = ()
    boundary: tuple[str, ...] = ()
    ranks: int = 0
    group: str = ""

    def __post_init__(self) -> None:
        for rate in (self.write_rate, self.read_rate):
            if not (0 < rate < math.inf):
                raise BudgetError(f"a rate of offload is bytes a second above 0, and not {shown(rate)}")
        if not (0 <= self.move_seconds < math.inf):
            raise BudgetError(f"move_seconds is a time of at least 0, and not {shown(self.move_seconds)}")
        if not self.where or len(self.where) > MOST_CHARACTERS or "\0" in self.where:
            raise BudgetError(f"offload says where tensors wait, 'host' or a folder, and not {shown(self.where)}")
        if self.ranks < 0 or ((self.ranks or self.group) and not self.is_shard):
            told = f"ranks={shown(self.ranks)} and group={shown(self.group)}"
            raise BudgetError(f"{told} say how many ranks have a part, and which, with offload='shard' alone")
        if self.is_shard and self.saved:
            raise BudgetError(f"offload='shard' keeps parts of boundaries alone, and saved={shown(self.saved)}")

    @classmethod
    def of(
        cls,
        given: str | os.PathLike[str] | Offload,
        *,
        saved: str | Iterable[str] = (),
        boundary: str | Iterable[str] = (),
        group: object = "",
    ) -> Offload:
        """Read a place: ``"host"``, a folder or ``"shard"``, with a rate (``"host@25GB/s"``) and calls that must move.

        Args:
            given: the place. Where it has no rate, one is measured by `apply`, or was in the profile, or is assumed.
            saved: patterns of calls of which what they save must wait.
            boundary: patterns of calls that must be recomputed, each by itself, from a boundary that waits.
            group: with ``"shard"``, the process group of the ranks that share layers, or its name, for a model whose
                parameters do not say it: its own code runs collectives.

        Returns:
            Where tensors wait.

        Raises:
            BudgetError: it makes no sense.
            PinError: a pattern is no text.

        Example:
            >>> import autockpt
            >>> autockpt.Offload.of("host", boundary="h.0").boundary
            ('h.0',)
        """
        found = cls.read(given)
        if found is None:
            raise BudgetError("offload is None, so nothing can wait anywhere")
        name = str(getattr(group, "group_name", group))
        return msgspec.structs.replace(found, saved=patterns(saved), boundary=patterns(boundary), group=name)

    @classmethod
    def read(cls, given: object, measured: Offload | None = None) -> Offload | None:
        """Read what a user gave, which may be None for nowhere.

        Args:
            given: that.
            measured: what was measured where the step was recorded, for a place that is given without a rate.

        Raises:
            BudgetError: it makes no sense.
        """
        if given is None:
            return None
        found = given if isinstance(given, Offload) else cls._parsed(given)
        if measured is None or not found.assumed or measured.where != found.where:
            return found
        return measured.like(found)

    def like(self, given: Offload) -> Offload:
        """Return the same with the calls that must move in another."""
        return msgspec.structs.replace(self, saved=given.saved, boundary=given.boundary)

    @classmethod
    def _parsed(cls, given: object) -> Offload:
        if isinstance(given, os.PathLike):
            given = os.fspath(given)
        if not isinstance(given, str):
            raise BudgetError(
                f"offload is {shown(given)}; give 'host', a folder such as '/scratch', 'shard', or one of them with "
                "its rate: 'host@25GB/s'"
            )
        where, at, rate = given.rpartition("@")
        if at and (rate.strip().endswith("/s") or where.strip().lower() in (HOST, SHARD)):
            each = _rate(given, rate.strip())
            return cls(where=_place(where), write_rate=each, read_rate=each)
        place = _place(given)
        assumed = {HOST: ASSUMED_HOST_RATE, SHARD: ASSUMED_SHARD_RATE}.get(place, ASSUMED_FOLDER_RATE)
        return cls(where=place, write_rate=assumed, read_rate=assumed, assumed=True)

    @property
    def pins(self) -> dict[Moved, tuple[str, ...]]:
        """The patterns of calls that must move, by what of them; nothing where there are none."""
        found: dict[Moved, tuple[str, ...]] = {"saved": self.saved, "boundary": self.boundary}
        return {kind: given for kind, given in found.items() if given}

    @property
    def is_host(self) -> bool:
        """Whether tensors wait in the host's memory, and not in a folder."""
        return self.where == HOST

    @property
    def is_shard(self) -> bool:
        """Whether ranks keep parts, so that nothing leaves the device."""
        return self.where == SHARD

    def staying_bytes(self, n_bytes: int) -> int:
        """Return how many bytes of a storage stay on the device while it waits."""
        return -(-n_bytes // self.ranks) if self.ranks else 0

    def seconds(self, n_bytes: int, tensors: int) -> float:
        """Return how long so many bytes of so many tensors take there and back."""
        return n_bytes / self.write_rate + n_bytes / self.read_rate + tensors * self.move_seconds

    def __str__(self) -> str:
        """Where to and how fast, for people."""
        write, read = (f"{format_bytes(round(rate))}/s" for rate in (self.write_rate, self.read_rate))
        place = "the host" if self.is_host else f"a file in {self.where}"
        if self.is_shard:
            place = f"parts on {self.ranks} ranks" if self.ranks else "parts on the ranks that share layers"
        return f"{place} ({write} there, {read} back{', measured' if self.measured else ''})"


def _place(given: str) -> str:
    told = given.strip().lower()
    return told if told in (HOST, SHARD) else given


def _rate(given: str, rate: str) -> float:
    """Read a rate, in bytes a second."""
    try:
        if not rate.endswith("/s"):
            raise BudgetError("no unit of time")
        return float(parse_bytes(rate.removesuffix("/s")))
    except BudgetError:
        raise BudgetError(
            f"the rate in offload={shown(given)} is {shown(rate)}; write bytes a second, as in 'host@25GB/s'"
        ) from None


def is_rated(given: object) -> bool:
    """Whether what a user gave says how fast it is."""
    if isinstance(given, Offload):
        return not given.assumed
    return isinstance(given, str) and given.rpartition("@")[2].strip().endswith("/s")
