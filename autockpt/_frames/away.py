"""Units of FSDP2 in a segment of several calls: their parameters may be away when its replay comes to them.

    forward    hooks gather ─▶ unit ─▶ hooks let go       hooks gather ─▶ unit ─▶ hooks let go
    backward   hooks gather the last unit ─▶ replay: gather ─▶ unit ─▶ let go, gather ─▶ unit ─▶ let go, the last unit

Their hooks run around what a member is, so that no replay runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from .. import _torch_private
from .._found.around import Undo, take_back
from .._found.held import leaf_of, tags_of
from .frame import MemberCall


def run_here(run: Callable[[MemberCall, Undo], Any], call: MemberCall, undo: Undo) -> Any:
    """Run the call of a unit in a replay, with its parameters here; return its result.

    What was away is gathered, and let go of afterwards; but what its unit has asked for already, as of the one whose
    backward is next, which stays.

    Args:
        run: runs the call, and is given where to say how that is undone.
        call: the call.
        undo: how the replay is undone.
    """
    own: Undo = []
    brought = _torch_private.gather(call.fsdp_unit)
    try:
        return run(call, own)
    finally:
        try:
            take_back(own)  # its modules get what they found: parameters that are whole
        finally:
            if own:  # an interrupt came as `take_back` began
                take_back(own)
            if brought:
                _torch_private.let_go(call.fsdp_unit)


def given_to(given: Iterable[Tensor]) -> list[Tensor]:
    """Return what a unit is given in a replay: tensors that begin a graph, as in forward."""
    return [each if each.grad_fn is None else _leaf(each) for each in given]


def _leaf(tensor: Tensor) -> Tensor:
    return leaf_of(tensor, type(tensor), tensor.requires_grad, tags_of(tensor))
