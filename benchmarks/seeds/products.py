"""What `speed` leaves: what is saved at the plain peak, by who made it, and the lowest peak that it reaches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from autockpt import Profile
from autockpt._choose.candidates.problem import levels
from autockpt._choose.index.products import multiplies
from autockpt._choose.index.profile_index import Index
from benchmarks.environment import table
from benchmarks.seeds.predicted import Figures, adding, lowest_with

__all__ = ["products", "products_table"]

NAMES = (
    "bert-large",
    "gpt2-xl",
    "llama-1b",
    "llama-8b",
    "resnet-152",
    "resnet-50",
    "sd-unet",
    "swin-base",
    "vit-large",
)


def products() -> list[Figures]:
    """Return a row for each profile; predicted."""
    return [_row(name) for name in NAMES]


def _row(name: str) -> Figures:
    profile = Profile.load(name)
    saved, plan = _saved(profile), lowest_with(profile, "speed")
    total = sum(saved.values())
    return {
        "profile": name,
        "saved_bytes": total,
        "products": saved["product"] / total,
        "inside_products": saved["inside"] / total,
        "peak_share": plan.peak_bytes / plan.plain_peak_bytes,
        "added_share": adding(profile, plan),
        "overhead": plan.recompute_overhead,
    }


def _saved(profile: Profile) -> Counter[str]:
    """Return the bytes that are saved at the plain peak: made by products, cast inside them, and the rest."""
    index, ops, saves = Index(profile), profile.ops, profile.saves
    level = levels(profile.ticks, index.birth, np.array(profile.tensors.death, np.int64), index.bytes)
    top = int(np.argmax(level))
    made = {tensor: op for op in reversed(range(len(ops))) for tensor in ops.makes[op]}
    standing = zip(saves.tensor, saves.pack, saves.release, strict=True)
    found: Counter[str] = Counter()
    for tensor in {tensor for tensor, pack, release in standing if tensor in made and pack <= top <= release}:
        op = made[tensor]
        function = ops.function[op]
        inside = function >= 0 and multiplies(profile.functions.name[function])
        kind = "product" if multiplies(ops.name[op]) else "inside" if inside else "other"
        found[kind] += profile.tensors.bytes[tensor]
    return found


def products_table(rows: list[dict[str, Any]]) -> str:
    """Lay out the rows."""
    heads = ["profile", "saved at the plain peak", "results of products", "cast inside products", "all else"]
    cells = (
        [
            f"`{row['profile']}`",
            f"{row['saved_bytes'] / 1e9:.1f} GB",
            f"{row['products']:.0%}",
            f"{row['inside_products']:.0%}",
            f"{1 - row['products'] - row['inside_products']:.0%}",
            f"{row['peak_share'] - 1:+.1%}",
            f"{row['added_share'] - 1:+.1%}",
            f"{row['overhead']:+.1%}",
        ]
        for row in rows
    )
    return table([*heads, "lowest peak", "of what the step adds", "time"], cells)
