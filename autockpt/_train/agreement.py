"""What ranks that train one model agree on: until they have a first plan, and where replays speak in every step.

each step begins    all say what they would do: plan, or record or time a step before; and whether they could begin
one cannot plan     those that could wait, and their steps are spilled
one has no room     what it saves stays where it is, and as the next step begins that is an error of all
one comes late      it may never: ranks take unequal steps, and each plans by itself
all can             the rank whose step needs most plans; the others take its plan, where that holds their own step
                    too, or make one. An error of one is an error of all, which names it; else all have a plan
later               plans may differ, since replays are silent, and each rank plans for what it meets

Where replays speak, as those of tensor parallelism run collectives, all have one and the same plan, also later: as each
step begins they agree to run under it, or to make another, or that all record or spill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from torch import nn

from .. import __version__
from .._data.errors import NotApplicable
from .._data.files import decode, encode
from .._data.plan import Plan
from .._ranks import One, Parted, Ranks, ranks_of
from .._ranks.errors import error_of, left_of, plain_error, unequal_of
from .._ranks.units import speaks
from ..solvers.errors import AutockptError
from .known import Ready
from .request import Request

T = TypeVar("T")

Next = Literal["go on", "plan", "wait"]
"""What follows of a step that begins: as was decided; with a plan made before it, by all ranks; or it is spilled."""

STRICT = (
    "strict=True, and {0} ranks train: a later step that fits no plan would raise on one of them alone, while the "
    "others wait for it. Leave strict out: such a step runs under the lowest plan, with a warning."
)

NOT_FOR_ALL = (
    "the ranks share parameters (tensor parallelism), so that they need one and the same plan, and none that one of "
    "them makes holds the steps of all to the budget"
)


class Agreement:
    """That of one model's ranks, from its first step to its first plan.

    Args:
        request: what was asked for here.

    Attributes:
        speaks: whether replays run collectives, so that ranks agree in every step.
        refused: calls that some rank could not replay, by key with the reason, where they speak.
    """

    def __init__(self, request: Request) -> None:
        self._request, self._over = request, False
        self._ranks: Ranks = One()
        self._own: Exception | None = None  # what planning failed with here
        self.speaks = False
        self.refused: dict[str, str] = {}

    @property
    def waits(self) -> bool:
        """Whether ranks wait for this one as each step begins."""
        return not self._over and len(self._ranks.members) > 1

    def begins(
        self,
        model: nn.Module,
        *,
        able: bool,
        under: Plan | None = None,
        refused: Mapping[str, str] = MappingProxyType({}),
        failed: AutockptError | None = None,
    ) -> Next:
        """Say what is to be done as a step begins.

        Args:
            model: that trains.
            able: whether it can be planned before, or is.
            under: the plan that it would run under; None where one is to be made.
            refused: calls that cannot be replayed here.
            failed: what the step before failed with here, though it went on for the sake of the others.

        Raises:
            AutockptError: ranks ask for different things, one has failed, or one does not come; on all alike.
            Parted: one has not come soon, and each plans by itself from now on.
        """
        if self._over:
            return "go on"
        if len(self._ranks.members) == 1:  # it may be wrapped only now
            self._ranks, self.speaks = ranks_of(model), speaks(model)
        if len(self._ranks.members) == 1:
            return "go on"
        if self._request.strict:
            raise NotApplicable(STRICT.format(len(self._ranks.members)))
        self._own = failed
        segments = "" if under is None or not self.speaks else hashlib.sha256(repr(under.segments).encode()).hexdigest()
        value = {"able": able, "asked": self._asked(), "under": segments, "refused": dict(refused)}
        value |= {} if failed is None else plain_error(failed, "trained")
        try:
            follows = self._ranks.agree(value, self._agreed, parting=not self.speaks)
        except Parted as parted:
            self._over = True
            raise failed or parted from None
        return follows if able else "go on"

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
            self._own, said = error, plain_error(error, "began a step")
        self._ranks.agree(said, self._refused)
        assert found is not None
        return found

    def plan(self, need_bytes: int, make: Callable[[], Ready], adopt: Callable[[Plan, str], Ready | None]) -> Ready:
        """Return a first plan for the step that begins, or where replays speak any.

        Args:
            need_bytes: what it holds plainly.
            make: makes one here.
            adopt: takes another rank's, if that holds this one's step to what was asked for, or is told why none does.

        Raises:
            AutockptError: that of the first rank that has one; on all of them.
        """
        ranks = self._ranks
        if not self.waits:
            return make()
        needy = ranks.agree({"need": need_bytes}, self._neediest)
        if self.speaks:
            return self._one_plan(needy, make, adopt)
        first = needy[0]
        ready, said = self._tried(make) if ranks.own == first else (None, {})
        told: Mapping[str, Any] = ranks.agree(said, lambda every: every[ranks.members.index(first)])
        if ranks.own != first and "plan" in told:
            plan = decode(told["plan"].encode(), Plan, source=f"the plan of rank {first}")
            ready, said = self._tried(lambda: adopt(plan, "") or make())
        self._over = True
        ranks.agree(said, self._refused)
        assert ready is not None
        return ready

    def _one_plan(
        self, needy: Sequence[int], make: Callable[[], Ready], adopt: Callable[[Plan, str], Ready | None]
    ) -> Ready:
        """Return one plan for all, made by the rank that needs most; by the next where that does not do for all."""
        ranks = self._ranks
        for number, first in enumerate(needy):
            ready, said = self._tried(make) if ranks.own == first else (None, {})
            told: Mapping[str, Any] = ranks.agree(said, lambda every: every[ranks.members.index(first)])  # noqa: B023
            if "error" in told:
                self._over = True
                raise self._own if self._own is not None and ranks.own == first else error_of(told, first)
            if ranks.own != first:
                plan = decode(told["plan"].encode(), Plan, source=f"the plan of rank {first}")
                unfit = told["unfit"] or (NOT_FOR_ALL if number + 1 == len(needy) else "")
                ready, said = self._tried(lambda: adopt(plan, unfit))  # noqa: B023
            ranks.agree(said, self._refused)
            if ranks.agree({"does": ready is not None}, lambda every: all(each["does"] for each in every)):
                assert ready is not None
                return ready
        raise NotApplicable(NOT_FOR_ALL)

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

    def _agreed(self, every: Sequence[Mapping[str, Any]]) -> Next:
        """What follows for those that are able to plan, or run under a plan."""
        self._refuse_left(every)
        self._refused(every)
        if unequal := unequal_of(self._ranks.members, every):
            self._over = True
            raise unequal
        self.refused = {call: why for each in every for call, why in each["refused"].items()}
        if not all(each["able"] for each in every):
            return "wait"
        under = {each["under"] for each in every}
        return "plan" if len(under) > 1 or "" in under else "go on"

    def _neediest(self, every: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ranks, the one first whose step needs most."""
        self._refuse_left(every)
        needs = dict(zip(self._ranks.members, (each["need"] for each in every), strict=True))
        return sorted(needs, key=lambda rank: (-needs[rank], rank))

    def _refuse_left(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Raise where a rank has left, as an error or as none."""
        if left := left_of(self._ranks.members, every):
            self._over = True
            raise left

    def _tried(self, make: Callable[[], Ready | None]) -> tuple[Ready | None, dict[str, Any]]:
        """Make a plan; return it, or what error there is, and what to say to the others."""
        try:
            ready = make()
        except Exception as error:  # whatever it is, the others must not wait for this rank
            self._own = error
            return None, plain_error(error, "planned")
        return ready, {} if ready is None else {"plan": encode(ready.plan).decode(), "unfit": ready.unfit}

    def _refused(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Raise the first error, if there is any."""
        self._refuse_left(every)
        for rank, each in zip(self._ranks.members, every, strict=True):
            if "error" in each:
                self._over = True
                raise self._own if self._own is not None and rank == self._ranks.own else error_of(each, rank)
