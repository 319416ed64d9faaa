"""What ranks that train one model agree on until they have a first plan; after that nothing is asked of the others.

each step begins    all say what they would do: plan, or record or time a step before; and whether they could begin
one cannot plan     those that could wait, and their steps are spilled
one has no room     what it saves stays where it is, and as the next step begins that is an error of all
one comes late      it may never: ranks take unequal steps, and each plans by itself
all can             the rank whose step needs most plans; the others take its plan, where that holds their own step
                    too, or make one. An error of one is an error of all, which names it; else all have a plan
later               replays are silent, so that plans may differ, and each rank plans for what it meets
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from torch import nn

from .. import __version__
from .._data.errors import NotApplicable
from .._data.files import decode, encode
from .._data.plan import Plan
from .._ranks import One, Parted, Ranks, ranks_of
from ..solvers.errors import AutockptError, BudgetError, Infeasible, TooCostly
from .known import Ready
from .request import Request

T = TypeVar("T")

Next = Literal["go on", "plan", "wait"]
"""What follows of a step that begins: as was decided; with a plan made before it, by all ranks; or it is spilled."""

STRICT = (
    "strict=True, and {0} ranks train: a later step that fits no plan would raise on one of them alone, while the "
    "others wait for it. Leave strict out: such a step runs under the lowest plan, with a warning."
)

UNEQUAL = (
    "the ranks ask for different things, and one plan for all is to be made: {0}. Give all of them the same arguments."
)

LEFT = "rank {0} {1}, so no rank makes a plan"


class Agreement:
    """That of one model's ranks, from its first step to its first plan.

    Args:
        request: what was asked for here.
    """

    def __init__(self, request: Request) -> None:
        self._request, self._over = request, False
        self._ranks: Ranks = One()
        self._own: Exception | None = None  # what planning failed with here

    @property
    def waits(self) -> bool:
        """Whether ranks wait for this one as each step begins."""
        return not self._over and len(self._ranks.members) > 1

    def begins(self, model: nn.Module, *, able: bool, failed: AutockptError | None = None) -> Next:
        """Say what is to be done as a step begins that is `able` to be planned before.

        Args:
            model: that trains.
            able: whether it is.
            failed: what the step before failed with here, though it went on for the sake of the others.

        Raises:
            AutockptError: ranks ask for different things, one has failed, or one does not come; on all alike.
            Parted: one has not come soon, and each plans by itself from now on.
        """
        if self._over:
            return "go on"
        if len(self._ranks.members) == 1:  # it may be wrapped only now
            self._ranks = ranks_of(model)
        if len(self._ranks.members) == 1:
            return "go on"
        if self._request.strict:
            raise NotApplicable(STRICT.format(len(self._ranks.members)))
        self._own = failed
        value = {"able": able, "asked": self._asked(), **({} if failed is None else _said(failed, "trained"))}
        try:
            every = self._ranks.agree(value, self._agreed, parting=True)
        except Parted:
            self._over = True
            raise
        return ("plan" if every else "wait") if able else "go on"

    def together(self, prepare: Callable[[], T]) -> T:
        """Prepare a step that begins, as long as ranks wait for each other: where one cannot, none does.

        Raises:
            AutockptError: that of the first rank that has one; on all of them.
        """
        if not self.waits:
            return prepare()
        found: T | None = None
        said: dict[str, Any] = {}
        try:
            found = prepare()
        except Exception as error:  # whatever it is, the others must not wait for this rank
            self._own, said = error, _said(error, "began a step")
        self._ranks.agree(said, self._refused)
        assert found is not None
        return found

    def plan(self, need_bytes: int, make: Callable[[], Ready], adopt: Callable[[Plan], Ready | None]) -> Ready:
        """Return a first plan for the step that begins.

        Args:
            need_bytes: what it holds plainly.
            make: makes one here.
            adopt: takes another rank's, if that holds this one's step to what was asked for.

        Raises:
            AutockptError: that of the first rank that has one; on all of them.
        """
        ranks = self._ranks
        if not self.waits:
            return make()
        first = ranks.agree({"need": need_bytes}, self._neediest)
        ready, said = self._tried(make) if ranks.own == first else (None, {})
        told: Mapping[str, Any] = ranks.agree(said, lambda every: every[ranks.members.index(first)])
        if ranks.own != first and "plan" in told:
            plan = decode(told["plan"].encode(), Plan, source=f"the plan of rank {first}")
            ready, said = self._tried(lambda: adopt(plan) or make())
        self._over = True
        ranks.agree(said, self._refused)
        assert ready is not None
        return ready

    def leave(self, why: str, error: BaseException | None = None) -> None:
        """Say to the others, who may wait, `why` this rank makes no plan; an error of its own, or none."""
        over, self._over = self._over, True
        if not over and len(self._ranks.members) > 1:
            words = why if error is None else f"{why}: {error}"
            self._ranks.tell({"left": words, "failed": error is not None})

    def _asked(self) -> dict[str, str]:
        request = self._request
        return {
            "version": __version__,
            "budget": str(request.goal),
            "solver": request.solver,
            "seconds": str(request.seconds),
            "pins": ", ".join(map(str, request.pins)),
        }

    def _agreed(self, every: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all are able to plan."""
        self._refuse_left(every)
        self._refused(every)
        asked = [each["asked"] for each in every]
        unequal = [what for what in asked[0] if any(each[what] != asked[0][what] for each in asked)]
        if unequal:
            self._over = True
            pairs = list(zip(self._ranks.members, asked, strict=True))
            told = [f"{what} {each[what]} on rank {rank}" for what in unequal for rank, each in pairs]
            raise (BudgetError if unequal == ["budget"] else NotApplicable)(UNEQUAL.format(", ".join(told)))
        return all(each["able"] for each in every)

    def _neediest(self, every: Sequence[Mapping[str, Any]]) -> int:
        """Return the rank whose step needs most."""
        self._refuse_left(every)
        needs = [each["need"] for each in every]
        return self._ranks.members[needs.index(max(needs))]

    def _refuse_left(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Raise where a rank has left, as an error or as none."""
        for rank, each in zip(self._ranks.members, every, strict=True):
            if "left" in each:
                self._over, words = True, LEFT.format(rank, each["left"])
                raise NotApplicable(words) if each["failed"] else Left(words)

    def _tried(self, make: Callable[[], Ready]) -> tuple[Ready | None, dict[str, Any]]:
        """Make a plan; return it, or what error there is, and what to say to the others."""
        try:
            ready = make()
        except Exception as error:  # whatever it is, the others must not wait for this rank
            self._own = error
            return None, _said(error, "planned")
        return ready, {"plan": encode(ready.plan).decode()}

    def _refused(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Raise the first error, if there is any."""
        self._refuse_left(every)
        for rank, each in zip(self._ranks.members, every, strict=True):
            if "error" in each:
                self._over = True
                raise self._own if self._own is not None and rank == self._ranks.own else _as_here(each, rank)


class Left(AutockptError):
    """A rank trains without a plan, which is no error; the others do then."""


def _said(error: Exception, meanwhile: str) -> dict[str, Any]:
    """Put an error into plain values, with what the rank did `meanwhile`."""
    said: dict[str, Any] = {"error": type(error).__name__, "words": f"{error}", "meanwhile": meanwhile}
    if isinstance(error, Infeasible):
        names = ("budget_bytes", "minimum_bytes", "solver", "dominated_by", "asked", "margin")
        said["figures"] = {name: getattr(error, name) for name in names}
    elif isinstance(error, TooCostly):
        figures = ("most_seconds", "least_seconds", "solver", "plain_seconds")
        said["figures"] = {name: getattr(error, name) for name in figures}
    return said


def _as_here(said: Mapping[str, Any], rank: int) -> AutockptError:
    """Return an error of another rank as one of this: of the same class, where that carries figures."""
    if said["error"] == Infeasible.__name__:
        return Infeasible(**said["figures"], notes=(f"rank {rank} says so, and the others make no plan without it",))
    if said["error"] == TooCostly.__name__:
        return TooCostly(**said["figures"], chosen=())
    return NotApplicable(LEFT.format(rank, f"has failed as it {said['meanwhile']} ({said['error']}: {said['words']})"))
