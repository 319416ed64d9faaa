"""Readable names: of single calls, of a row's calls, and of segments that look alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..._data.plan import Segment
from ..._data.text.keys import label
from ..._train.messages.words import ranges

_ANY = "*"  # stands for the number of a layer


def place(step: str) -> str:
    """Return a readable name of a timeline's step: ``backward of h.1.mlp``, ``forward of the whole model``."""
    what, _, call = step.partition(" of ")
    return f"{what} of {label(call)}" if "#" in call else step


def unit_labels(segment: Segment, keys: Sequence[str]) -> tuple[str, ...]:
    """Return readable names of units: ``attn.c_proj``, ``attn/scaled_dot_product_attention#0``."""
    if len(segment.calls) > 1:
        return tuple(map(label, keys))
    return tuple(label(key).removeprefix(label(segment.calls[0])).removeprefix(".") for key in keys)


def inner_labels(segment: Segment) -> tuple[str, ...]:
    """Return readable names of what is recomputed again inside a segment, without what is inside that.

    They are relative to the segment's calls, and those of calls that are alike are there once: ``mlp.up … act``.
    """
    around = [f"{call.rpartition('#')[0]}." for call in segment.calls]
    names = [span(each.calls) for each in segment.inner]
    return tuple(dict.fromkeys(name.removeprefix(next(filter(name.startswith, around), "")) for name in names))


def span(calls: Sequence[str]) -> str:
    """Return calls as ``transformer.h.0 … h.2``: the first, then the part of the last that differs."""
    if len(calls) == 1:
        return "" if calls[0] == "#0" else label(calls[0])
    first, last = label(calls[0]).split("."), label(calls[-1]).split(".")
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    if shared and last[shared : shared + 1] and not last[shared][0].isalpha():
        shared -= 1  # a number alone says too little
    return f"{'.'.join(first)} … {'.'.join(last[shared:])}"


def span_of_segments(segments: Sequence[Segment]) -> str:
    """Return the calls of segments that differ only in the layer number: ``h.{0-3, 7}.ln … mlp``."""
    calls, _ = without_layer(segments[0].calls)
    layers = [layer for _, layer in map(without_layer, (segment.calls for segment in segments)) if layer is not None]
    return span(calls).replace(_ANY, ranges(layers), 1) if layers else span(calls) or "the whole model"


def without_layer(calls: tuple[str, ...]) -> tuple[tuple[str, ...], int | None]:
    """Replace the first number in the calls' names by a placeholder, if all have the same; return it too."""
    parts = [call.split(".") for call in calls]
    names = [call.partition("#")[0].split(".") for call in calls]
    at = next((i for i, part in enumerate(names[0]) if part.isdigit()), None)
    if at is None or any(name[: at + 1] != names[0][: at + 1] for name in names):
        return calls, None
    return tuple(
        ".".join([*part[:at], part[at].replace(names[0][at], _ANY, 1), *part[at + 1 :]]) for part in parts
    ), int(names[0][at])
