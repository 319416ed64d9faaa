"""Kinds of what kernels of other libraries do, in stand-ins that a CPU can run.

They save on `ctx` what no hook sees, write through pointers what no version counts, and keep scales in objects, classes
and globals. `docs/kernels.md` says which library does which.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.nn.functional import gelu

from tests.nets.kernel_codes import Adapted, Attributes, Quantizes
from tests.nets.kernel_operators import declared, normed
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
    Loss,
    LossInChild,
    Normalises,
    NormalisesGiven,
    Overwrites,
    OverwritesGiven,
    Tiles,
    emptied,
    over_input,
    poke,
)
from tests.nets.kind import Before, Kind, Outcome, Within

__all__ = ["KERNELS"]


def _kind(name: str, block: Callable[[], nn.Module], given: Outcome = Outcome.REFUSED, **others: Any) -> Kind:
    return Kind(name=name, block=block, given=given, begin=begin_anew, outside=outside, **others)


def _recomputed(name: str, block: Callable[[], nn.Module]) -> Kind:
    return _kind(name, block, Outcome.EXACT, planned=(Outcome.EXACT,))


KERNELS: tuple[Kind, ...] = (
    _kind("tensors on ctx", Attributes, Outcome.EXACT),
    _kind("codes that every forward makes anew", Quantizes),
    _recomputed("codes with scales in an object", Adapted),
    _recomputed("a result over what the block made", lambda: Within(over_input)),
    _kind("a result over what the block was given", lambda: Before(over_input)),
    _recomputed("a normalisation over what the block made, and it says so", Normalises),
    _kind("a normalisation over what the block was given, and it says so", NormalisesGiven),
    _recomputed("a gradient over logits in forward", Loss),
    _kind("a gradient over logits that a child was given", LossInChild, Outcome.EXACT),
    _recomputed("gradients over what was saved", Overwrites),
    _recomputed("gradients over what a child was given", OverwritesGiven),
    _recomputed("what was saved emptied in backward", lambda: Within(emptied)),
    _kind("a module that runs in backward, in parts", Tiles, Outcome.EXACT),
    *(
        _kind(f"a history of scales {where.__name__}, {how.__name__}", partial(Scaling, where, how))
        for where in (in_attribute, in_object, in_global)
        for how in (seen, poke)
    ),
    _kind("scales of a class, on in a context", InContext, step=in_context),
    _kind("statistics moved through pointers", Statistics, Outcome.EXACT),
    _kind("a cast kept until the weight changes", Workspace, Outcome.EXACT),
    _kind("locks that end as they began", Locks),  # a replay ends before they do
    _recomputed("an operator with a backward of its own", lambda: Within(lambda x: gelu(normed(x)[0]))),
    _kind("an operator that is said to write", lambda: Within(declared(False)), Outcome.EXACT),
    _kind("an operator that writes and does not say so", lambda: Within(declared(True)), Outcome.EXACT),
    _kind("an operator that is said to write what was given", lambda: Before(declared(False))),
    _kind("an operator that writes what was given", lambda: Before(declared(True))),
)
