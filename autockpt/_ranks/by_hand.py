"""Puts a given plan on all ranks or on none, if its replays run collectives.

If one rank had other segments, collectives of different replays would meet: ranks would get wrong results, or hang.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from torch import nn

from .. import __version__
from .._data.plan import FIGURES, Plan, Segment
from .._torch import private
from . import One, ranks_of
from .base import Ranks
from .errors import PLAN, left_of, plain_error, refuse_failed, told_as, unequal_of
from .fsdp import gathers, runs_collectives, units


def what_runs(plan: Plan) -> str:
    """Return a hash of what a plan runs. Figures are left out: each rank has its own."""
    return hashlib.sha256(repr([*map(_without_figures, plan.segments)]).encode()).hexdigest()


def _without_figures(segment: Segment) -> Segment:
    inner = tuple(map(_without_figures, segment.inner))
    return msgspec.structs.replace(segment, inner=inner, **{name: getattr(_PLAIN, name) for name in FIGURES})


_PLAIN = Segment(calls=("",))


def put_on_together(model: nn.Module, put_on: Callable[[], Plan], take_off: Callable[[], object]) -> Plan:
    """Put a plan on a model. If its replays run collectives, put it on all ranks or on none.

    With units of FSDP2 they do only if the plan recomputes a call that gathers. A rank whose plan runs no collectives
    tells the others so, and does not wait.

    Args:
        model: the model.
        put_on: puts the plan on, and returns it.
        take_off: takes it off.

    Raises:
        NotApplicable: ranks have different plans, or one has failed or does not answer; raised on all ranks.
        Exception: whatever `put_on` raises on this rank.
    """
    ranks, always = _concerned(model)
    if len(ranks.members) == 1:
        return put_on()
    own: Exception | None = None
    put: Plan | None = None
    said: dict[str, Any] = {}
    try:
        put = put_on()
        said = {"asked": {PLAN: f"of {len(put.segments)} segments ({what_runs(put)[:8]})", "version": __version__}}
    except Exception as error:  # whatever it is, the others must not wait for this rank
        own, said = error, plain_error(error, "was given a plan")
    except BaseException as error:
        with contextlib.suppress(RuntimeError):
            ranks.tell({"left": f"has failed as it was given a plan ({told_as(error)})", "failed": True})
        raise

    try:
        if always or (put is not None and gathers(model, [segment.calls for segment in put.segments])):
            ranks.agree(said, functools.partial(_refuse_unlike, ranks, own))
        else:
            ranks.tell(said)
        if own is not None:
            raise own
    except BaseException:
        if put is not None:
            take_off()
        raise
    assert put is not None
    return put


def _concerned(model: nn.Module) -> tuple[Ranks, bool]:
    """Return the ranks that a plan on a model may concern; and whether every plan does, or only one that gathers."""
    always = runs_collectives(model)
    asks = (always or units(model)) and private.group_backend() != private.FAKE  # a fake group has no other ranks
    return (ranks_of(model) if asks else One()), always


def _refuse_unlike(ranks: Ranks, own: Exception | None, every: Sequence[Mapping[str, Any]]) -> None:
    """Refuse what ranks have said of their plans if one has failed, or if they differ; `own` is this rank's error."""
    if left := left_of(ranks.members, every):
        raise left
    refuse_failed(ranks, every, own)
    if unequal := unequal_of(ranks.members, every):
        raise unequal
