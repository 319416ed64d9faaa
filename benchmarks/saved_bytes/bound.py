"""How many recompute seconds any method needs that holds so many bytes between forward and backward, op by op."""

from __future__ import annotations

import dataclasses
import math

from autockpt._choose.index.profile_index import Index
from autockpt._choose.predict.bound import state_operators
from autockpt._data.profile import Profile
from autockpt.solvers import Dataflow, Lives, peak_bound

__all__ = ["saved_bound", "saved_dataflow"]


def saved_bound(flow: Dataflow, held_bytes: int) -> float:
    """Bound the recompute seconds of any method that holds at most `held_bytes` between forward and backward.

    Args:
        flow: the ops of a block or of a whole model. What it says about keeping and recomputing units is ignored:
            a method may copy, and may run an op that draws random numbers again.
        held_bytes: most bytes held, each storage once, boundaries included, free items left out.

    Returns:
        The optimum of the linear relaxation; infinite where no method holds so little.

    Source: that of `autockpt.solvers.peak_bound`, for one step: the one between forward and backward.
    Exact for the relaxation.
    """
    all_bytes = sum(item.bytes for item in flow.items)
    lives = Lives(
        base_bytes=(0, all_bytes, 0),  # so that forward and backward themselves have room for everything
        run_step=(0,) * len(flow.units),
        free_step=(1,) * len(flow.items),
        read_steps=tuple((2,) if item.saved else () for item in flow.items),
    )
    return peak_bound(flow, lives, all_bytes + held_bytes, seconds=math.inf).seconds


def saved_dataflow(profile: Profile) -> Dataflow:
    """State the whole model as operators, for the question what is held between forward and backward.

    Args:
        profile: the recorded step.

    Returns:
        A unit for each row of ``profile.ops``; what the caller keeps beyond forward is free.
    """
    index = Index(profile)
    flow, tensors, _ = state_operators(index)
    items = tuple(
        dataclasses.replace(item, free=item.free or bool(index.natural[tensor] > profile.forward_ticks))
        for item, tensor in zip(flow.items, tensors, strict=True)
    )
    return dataclasses.replace(flow, items=items)
