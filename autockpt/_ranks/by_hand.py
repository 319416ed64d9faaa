"""Puts a given plan on all ranks or on none, if its replays run collectives.

If one rank had other segments, collectives of different replays would meet: ranks would get wrong results, or hang.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
from torch import nn

from .. import __version__
from .._data.plan import FIGURES, Plan, Segment
from .._torch import private
from . import One, ranks_of
from .base import Ranks
from .errors import PLAN
from .fsdp import gathers, runs_collectives, units
from .together import done_together


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

    def waits(put: Plan | None) -> bool:
        return always or (put is not None and gathers(model, [segment.calls for segment in put.segments]))

    return done_together(ranks, put_on, take_off, asked=_asked, meanwhile="was given a plan", waits=waits)


def _asked(plan: Plan) -> dict[str, str]:
    """Return what must be the same on all ranks of a plan that is given, in words."""
    return {PLAN: f"of {len(plan.segments)} segments ({what_runs(plan)[:8]})", "version": __version__}


def _concerned(model: nn.Module) -> tuple[Ranks, bool]:
    """Return the ranks that a plan on a model may concern; and whether every plan does, or only one that gathers."""
    always = runs_collectives(model)
    asks = (always or units(model)) and private.group_backend() != private.FAKE  # a fake group has no other ranks
    return (ranks_of(model) if asks else One()), always
