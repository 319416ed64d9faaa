"""FSDP2 units in a segment of several calls: their parameters may be sharded when the replay comes to them.

    forward    hooks gather ─▶ unit ─▶ hooks free         hooks gather ─▶ unit ─▶ hooks free
    backward   hooks gather the last unit ─▶ replay: gather ─▶ unit ─▶ free, gather ─▶ unit ─▶ free, the last unit

FSDP2's hooks run outside of members, so no replay runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from ...._calls.found.around import Undo, take_back
from ...._calls.found.held import leaf_of, tags_of
from ...._torch import private
from ..frame import MemberCall


def run_here(run: Callable[[MemberCall, Undo], Any], call: MemberCall, undo: Undo) -> Any:
    """Run the call of a unit in a replay, with its parameters gathered; return its result.

    Sharded parameters are gathered, and freed after the call. If FSDP2 has begun to gather them already, as for the
    unit whose backward is next, they stay.

    Args:
        run: runs the call, and adds to a list how that is undone.
        call: the call.
        undo: not used: what the call changes is undone before its parameters are freed.
    """
    own: Undo = []
    brought = private.gather(call.fsdp_unit)
    try:
        return run(call, own)
    finally:
        try:
            take_back(own)  # while the parameters are gathered, as forward found them
        finally:
            if own:  # an interrupt came as `take_back` began
                take_back(own)
            if brought:
                private.let_go(call.fsdp_unit)


def given_to(given: Iterable[Tensor]) -> list[Tensor]:
    """Return a unit's arguments for a replay, as leaves: in forward, FSDP2's hooks gave them a node of their own."""
    return [each if each.grad_fn is None else _leaf(each) for each in given]


def _leaf(tensor: Tensor) -> Tensor:
    return leaf_of(tensor, type(tensor), tensor.requires_grad, tags_of(tensor))
