"""Errors of one rank as plain values, and as errors of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._data.errors import NotApplicable
from ..solvers.errors import AutockptError, BudgetError, Infeasible, TooCostly
from .base import Ranks

UNEQUAL = "the ranks ask for different things, and have to agree on one: {0}. Give all of them the same arguments."

LEFT = "rank {0} {1}, so no rank makes a plan"


STRICT = (
    "strict=True, and {0} ranks train: a later step that fits no plan would raise on one of them alone, while the "
    "others wait for it. Leave strict out: such a step runs under the lowest plan, with a warning."
)

PLAN = "plan"
"""The key under which a rank says which plan it is given, or that a plan is to be made."""


class StoppedPlanning(AutockptError):
    """A rank trains without a plan from now on, which is no error. The other ranks then do so too."""


def left_of(ranks: Sequence[int], every: Sequence[Mapping[str, Any]]) -> AutockptError | None:
    """Return what is raised where one of the ranks has stopped planning; None where none has."""
    for rank, each in zip(ranks, every, strict=True):
        if "left" in each:
            words = LEFT.format(rank, each["left"])
            return NotApplicable(words) if each["failed"] else StoppedPlanning(words)
    return None


def refuse_failed(ranks: Ranks, every: Sequence[Mapping[str, Any]], own: Exception | None) -> None:
    """Raise the error of the first rank that told of one; `own` is this rank's, which is raised as it is."""
    for rank, each in zip(ranks.members, every, strict=True):
        if "error" in each:
            raise own if own is not None and rank == ranks.own else error_of(each, rank)


def unequal_of(ranks: Sequence[int], every: Sequence[Mapping[str, Any]]) -> AutockptError | None:
    """Return what is raised where ranks have asked for different things; None where they have not."""
    asked = [each["asked"] for each in every]
    names = dict.fromkeys(what for each in asked for what in each)
    unequal = [what for what in names if any(each.get(what) != asked[0].get(what) for each in asked)]
    if not unequal:
        return None
    told = unequal if PLAN not in unequal else [PLAN]  # a rank that is given a plan asks for nothing else
    words = [f"{what} {each[what]} on rank {rank}" for what in told for rank, each in zip(ranks, asked, strict=True)]
    return (BudgetError if unequal == ["budget"] else NotApplicable)(UNEQUAL.format(", ".join(words)))


def told_as(error: BaseException) -> str:
    """Return an error as part of a sentence: its class, and its words if it has any."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def plain_error(error: Exception, meanwhile: str) -> dict[str, Any]:
    """Put an error into plain values, with what the rank did `meanwhile`."""
    said: dict[str, Any] = {"error": type(error).__name__, "words": f"{error}", "meanwhile": meanwhile}
    if isinstance(error, Infeasible):
        names = ("budget_bytes", "minimum_bytes", "solver", "dominated_by", "asked", "margin")
        said["figures"] = {name: getattr(error, name) for name in names}
    elif isinstance(error, TooCostly):
        figures = ("most_seconds", "least_seconds", "solver", "plain_seconds")
        said["figures"] = {name: getattr(error, name) for name in figures}
    return said


def error_of(said: Mapping[str, Any], rank: int) -> AutockptError:
    """Return another rank's error as an error of this rank; of the same class if that class carries figures."""
    if said["error"] == Infeasible.__name__:
        return Infeasible(**said["figures"], notes=(f"rank {rank} says so, and the others make no plan without it",))
    if said["error"] == TooCostly.__name__:
        return TooCostly(**said["figures"], chosen=())
    words = f"{said['error']}: {said['words']}" if said["words"] else said["error"]
    return NotApplicable(LEFT.format(rank, f"has failed as it {said['meanwhile']} ({words})"))
