"""Kinds of what kernels of other libraries do, in stand-ins that a CPU can run.

They save on `ctx` what no hook sees, write through pointers what no version counts, and keep scales in objects, classes
and globals. `docs/limits.md` says which library does which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tests.nets.kernel_codes import Adapted, Attributes, Quantizes
from tests.nets.kernel_operators import Declares, DeclaresOfGiven, Norms
from tests.nets.kernel_state import (
    InContext,
    Locks,
    Scaling,
    Statistics,
    Workspace,
    begin_anew,
    in_attribute,
    in_context,
    in_global,
    in_object,
    outside,
    seen,
)
from tests.nets.kernel_writes import (
    Inside,
    LetsGo,
    Loss,
    LossInChild,
    Normalises,
    NormalisesGiven,
    OverGiven,
    Overwrites,
    OverwritesGiven,
    Tiles,
    poke,
)
from tests.nets.kind import Kind, Outcome

__all__ = ["KERNELS"]


def _kind(name: str, block: Callable[[], nn.Module], given: Outcome = Outcome.REFUSED, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, begin=begin_anew, outside=outside, **others)


def _scaling(history: Callable[[Scaling], Tensor], roll: Callable[[Tensor, Tensor], object]) -> Callable[[], nn.Module]:
    return lambda: Scaling(history, roll)


def _recomputed(name: str, block: Callable[[], nn.Module]) -> Kind:
    return _kind(name, block, Outcome.EXACT, planned=(Outcome.EXACT,))


KERNELS: tuple[Kind, ...] = (
    _kind("tensors on ctx", Attributes, Outcome.EXACT),
    _kind("codes that every forward makes anew", Quantizes),
    _recomputed("codes with scales in an object", Adapted),
    _recomputed("a result over what the block made", Inside),
    _kind("a result over what the block was given", OverGiven),
    _recomputed("a normalisation over what the block made, and it says so", Normalises),
    _kind("a normalisation over what the block was given, and it says so", NormalisesGiven),
    _recomputed("a gradient over logits in forward", Loss),
    _kind("a gradient over logits that a child was given", LossInChild, Outcome.EXACT),
    _recomputed("gradients over what was saved", Overwrites),
    _recomputed("gradients over what a child was given", OverwritesGiven),
    _recomputed("what was saved emptied in backward", LetsGo),
    _kind("a module that runs in backward, in parts", Tiles, Outcome.EXACT),
    *(
        _kind(f"a history of scales {where.__name__}, {how.__name__}", _scaling(where, how))
        for where in (in_attribute, in_object, in_global)
        for how in (seen, poke)
    ),
    _kind("scales of a class, on in a context", InContext, step=in_context),
    _kind("statistics moved through pointers", Statistics, Outcome.EXACT),
    _kind("a cast kept until the weight changes", Workspace, Outcome.EXACT),
    _kind("locks that end as they began", Locks),  # a replay ends before they do
    _recomputed("an operator with a backward of its own", Norms),
    _kind("an operator that is said to write", lambda: Declares(False), Outcome.EXACT),
    _kind("an operator that writes and does not say so", lambda: Declares(True), Outcome.EXACT),
    _kind("an operator that is said to write what was given", lambda: DeclaresOfGiven(False)),
    _kind("an operator that writes what was given", lambda: DeclaresOfGiven(True)),
)
