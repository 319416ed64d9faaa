"""A whole profile at another size: every number of bytes and seconds in it by its own law."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import msgspec

from ..._data.errors import GrowthError
from ..._data.profile import Profile
from ..._data.tables import FunctionTable, OpTable
from .laws import Laws, Size, sized
from .structure import FREE, is_bytes, is_seconds, same_structure

S = TypeVar("S", bound=int | Size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Profiles of a model at every size of batch, from those at two.

    Attributes:
        sizes: the two sizes, a number for each dimension that varies.
        profiles: what was recorded at each.
    """

    sizes: tuple[Size, Size]
    profiles: tuple[Profile, Profile]

    @classmethod
    def of(cls, profiles: Mapping[S, Profile]) -> Growth:
        """Take two profiles of one structure.

        Many models do something else for a single sample than for several, so sizes from 2 samples on are a better
        beginning.

        Args:
            profiles: two profiles by their size. That is the number of samples where only the batch varies, that of
                tokens where only the length does, that of pixels where an image's height and width vary together; and
                a tuple with a number for each where several vary apart, such as samples and tokens. Then each
                dimension needs a ratio of its own between the two: ``(2, 128)`` and ``(4, 384)``.

        Returns:
            Their growth.

        Raises:
            GrowthError: not two different sizes, or two structures; says where they part first.

        Example:
            >>> import torch, autockpt
            >>> from autockpt._run.growth import Growth
            >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
            >>> growth = Growth.of({n: autockpt.profile(model, torch.randn(n, 8)) for n in (2, 4)})
            >>> growth.at(64).static.input_bytes
            2048
        """
        sizes = [sized(size) for size in profiles]
        if len(sizes) != 2 or len(sizes[0]) != len(sizes[1]):
            raise GrowthError(f"growth needs profiles at two sizes of as many dimensions; these are {sizes}")
        first, second = profiles.values()
        if difference := same_structure(first, second):
            raise GrowthError(
                f"the profiles at sizes {sizes[0]} and {sizes[1]} are not of one structure: {difference}. Record the "
                "same model at two sizes at which it does the same; one sample is often a case of its own"
            )
        return cls(sizes=(sizes[0], sizes[1]), profiles=(first, second))

    def at(self, size: int | Size) -> Profile:
        """Predict the profile at a size.

        Args:
            size: in the dimensions of the two that were recorded.

        Returns:
            The recorded profile where there is one, else one whose notes say that it is predicted. Bytes are exact for
            every tensor that is constant or proportional to a power of the size, and within two sizes of one dimension
            never too low for one that is a sum of such powers (`Laws.bytes`).

        Raises:
            GrowthError: the size has other dimensions, or the two that were recorded do not tell it.

        O(size of a profile).
        """
        wanted = sized(size)
        if len(wanted) != len(self.sizes[0]):
            raise GrowthError(f"size {wanted} has not the dimensions of the recorded ones, {self.sizes}")
        if wanted in self.sizes:
            return self.profiles[self.sizes.index(wanted)]
        first, second = self.profiles
        laws = Laws(*self.sizes, wanted)
        parts = {name: _grown(laws, name, getattr(first, name), getattr(second, name)) for name in _GROWING}
        marks = _mark_seconds(laws, first, second)
        parts["calls"] = tuple(
            msgspec.structs.replace(
                one,
                enter_seconds=marks[one.enter],
                exit_seconds=marks[one.exit],
                signature=f"{one.signature} {other.signature}".strip(),
            )
            for one, other in zip(parts["calls"], second.calls, strict=True)
        )
        parts["saves"] = msgspec.structs.replace(
            parts["saves"], seconds=tuple(map(marks.__getitem__, first.saves.pack))
        )
        parts["ops"] = shared_out(parts["ops"], parts["functions"])
        recorded = " and ".join(map(_words, self.sizes))
        note = f"predicted for a batch of size {_words(wanted)}, from steps that were recorded at {recorded}"
        return msgspec.structs.replace(first, **parts, notes=(*dict.fromkeys((*first.notes, *second.notes)), note))


_GROWING = tuple(name for name in Profile.__struct_fields__ if name not in FREE)


def _words(size: Size) -> str:
    return " × ".join(map(str, size))


def _grown(laws: Laws, name: str, first: Any, second: Any) -> Any:
    """Let a field grow: bytes and seconds at any depth, while the rest is equal in both."""
    if isinstance(first, dict):
        return {key: _grown(laws, name, value, second[key]) for key, value in first.items()}
    if isinstance(first, msgspec.Struct):
        inner = [field for field in first.__struct_fields__ if field not in FREE]
        changes = {field: _grown(laws, field, getattr(first, field), getattr(second, field)) for field in inner}
        return msgspec.structs.replace(first, **changes)
    if isinstance(first, tuple):
        if is_seconds(name):
            return _column(laws, first, second)
        if is_bytes(name) or any(isinstance(each, msgspec.Struct) for each in first):
            return tuple(_grown(laws, name, *pair) for pair in zip(first, second, strict=True))
        return first
    if is_seconds(name):
        return laws.seconds(first, second)
    return laws.bytes(first, second) if is_bytes(name) else first


def _column(laws: Laws, first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    """Let seconds grow each by itself, but their sum as a whole: a clock is surer of it than of its parts."""
    each = [laws.seconds(one, other) for one, other in zip(first, second, strict=True)]
    total = sum(each)
    scale = laws.seconds(sum(first), sum(second)) / total if total else 1.0
    return tuple(seconds * scale for seconds in each)


def _mark_seconds(laws: Laws, first: Profile, second: Profile) -> dict[int, float]:
    """When each call began and ended and each save was made, by tick: what passes from one to the next grows."""
    ticks, one = _passed(first)
    _, other = _passed(second)
    return dict(zip(ticks, accumulate(_column(laws, one, other)), strict=True))


def _passed(profile: Profile) -> tuple[list[int], list[float]]:
    """The ticks at which a profile tells the time, and how long passed before each since the one before it."""
    marks = dict(zip(profile.saves.pack, profile.saves.seconds, strict=True))
    marks |= {call.enter: call.enter_seconds for call in profile.calls}
    marks |= {call.exit: call.exit_seconds for call in profile.calls}
    ticks = sorted(marks)
    times = accumulate((marks[tick] for tick in ticks), max)
    return ticks, [later - earlier for earlier, later in pairwise([0.0, *times])]


def shared_out(ops: OpTable, functions: FunctionTable) -> OpTable:
    """Let the operators of each function take its seconds."""
    totals: dict[int, float] = defaultdict(float)
    for function, seconds in zip(ops.function, ops.seconds, strict=True):
        totals[function] += seconds
    return msgspec.structs.replace(
        ops,
        seconds=tuple(
            seconds * functions.seconds[function] / totals[function] if function >= 0 and totals[function] else seconds
            for function, seconds in zip(ops.function, ops.seconds, strict=True)
        ),
    )
