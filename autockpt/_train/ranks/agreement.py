"""What ranks that train one model agree on: as each step begins, until all have a first plan.

each step begins    each rank says whether it can plan, or still has to record or time a step; and whether it failed
one cannot plan     the others wait for it: their steps are spilled
one has no room     its saved tensors stay on the device, and all ranks raise an error as the next step begins
one comes late      it may never come: the ranks take unequal steps, and each plans by itself
all can plan        the rank whose step needs most plans. The others take its plan if it holds their own step too, else
                    make their own. An error of one rank is raised on all, and names it; else all have a plan
later               plans may differ, since replays run no collectives: each rank plans for the steps that it sees

Replays run collectives with tensor parallelism, or over several units of FSDP2 if ranks find no first plan without such
replays. Then all ranks need the same plan. In each step they agree to run under it, make another one,
record or spill.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import nn

from ..._data.errors import NotApplicable
from ..._data.files import decode, encode
from ..._data.offload import Offload
from ..._data.plan import Plan
from ..._data.profile import Profile
from ..._ranks import Choose, One, Parted, Ranks, ranks_of
from ..._ranks.by_hand import what_runs
from ..._ranks.errors import STRICT, left_of, plain_error, refuse_failed, told_as, unequal_of
from ..._ranks.fsdp import runs_collectives, units
from ..._stash.parts import with_parts
from ..._stash.shard import is_unlike
from ...solvers.errors import Infeasible, TooCostly
from ..deciding.known import Ready
from ..request import Request


class Prepared(Protocol):
    """What a rank has prepared for its step."""

    def drop(self) -> None:
        """Release what it holds."""


T = TypeVar("T", bound=Prepared)
V = TypeVar("V")

Next = Literal["go on", "plan", "wait"]
"""How a step begins: as this rank decided; after all ranks have made a plan; or spilled, to wait for other ranks."""

NOT_FOR_ALL = (
    "the ranks share parameters (tensor parallelism), so all need the same plan, and none of the plans that they made "
    "holds the steps of all ranks to the budget"
)


class Agreement:
    """The agreement of one model's ranks: up to its first plan, or in every step if replays run collectives.

    Args:
        request: what the user asked for on this rank.

    Attributes:
        runs_collectives: whether replays run collectives, so that the ranks agree in every step.
        given: whether this rank plans on a batch that the user gives, before any step.
        refused: calls that some rank could not replay, by key, with the reason.
    """

    def __init__(self, request: Request) -> None:
        self._request, self._ended = request, False
        self._ranks: Ranks = One()
        self._own: Exception | None = None  # the error of this rank
        self._hashed: tuple[Plan, str] | None = None  # a plan, and what tells it from others
        self.runs_collectives = self.given = self._gathers = False
        self.refused: dict[str, str] = {}

    @property
    def waits(self) -> bool:
        """Whether other ranks wait for this one as each step begins."""
        return not self._ended and self.several

    @property
    def several(self) -> bool:
        """Whether several ranks train the model, as far as is known."""
        return len(self._ranks.members) > 1

    def opens(self, model: nn.Module, *, given: bool = False) -> bool:
        """Find the ranks that train a model, which may have been wrapped since. Return whether there are several."""
        self.given = self.given or given
        if not self.several:
            self._ranks, self.runs_collectives, self._gathers = (
                ranks_of(model),
                runs_collectives(model),
                bool(units(model)),
            )
        return self.several

    def meets(self, model: nn.Module) -> bool:
        """Whether other ranks wait for this one as the step that begins does."""
        return not self._ended and self.opens(model)

    def begins(
        self,
        model: nn.Module,
        *,
        able: bool,
        under: Plan | None = None,
        refused: Mapping[str, str] = MappingProxyType({}),
        failed: Exception | None = None,
        meanwhile: str = "trained",
    ) -> Next:
        """Agree on what all ranks do as a step begins, and return that.

        Args:
            model: the model that trains.
            able: whether this rank can plan now, or has a plan.
            under: the plan that the step would run under; None if one is to be made.
            refused: calls that cannot be replayed on this rank.
            failed: an error of this rank, which others do not know yet: of the previous step, which went on because
                they needed it; or of a step on a batch that was given.
            meanwhile: what this rank did as it failed.

        Raises:
            AutockptError: ranks ask for different things, one has failed, or one does not come; raised on all.
            Parted: one has not come soon; each rank plans by itself from now on.
        """
        if not self.meets(model):
            return "go on"
        if self._request.strict:
            raise NotApplicable(STRICT.format(len(self._ranks.members)))
        self._own = failed
        segments = "" if under is None or not self.runs_collectives else self._hash_of(under)
        asked = self._request.compared(given=self.given)
        value = {"able": able, "asked": asked, "under": segments, "refused": dict(refused)}
        value |= {} if failed is None else plain_error(failed, meanwhile)
        try:
            follows = self._agree(value, self._agreed, parting=not self.runs_collectives)
        except Parted as parted:
            self._ended = True
            raise failed or parted from None
        return follows if able else "go on"

    def together(self, prepare: Callable[[], T]) -> T:
        """Prepare a step on all ranks, as long as they wait for each other. If one fails, all drop theirs and raise.

        Raises:
            AutockptError: the error of the first rank that has one; raised on all.
        """
        if not self.waits:
            return prepare()
        found: T | None = None
        said: dict[str, Any] = {}
        try:
            found = prepare()
        except Exception as error:  # whatever it is, the others must not wait for this rank
            self._own, said = error, plain_error(error, "began a step")
        if self._ended and found is not None:  # this rank has stopped planning meanwhile, and has told the others
            return found
        try:
            self._agree(said, self._raise_first)
        except BaseException:
            if found is not None:  # the profiler of a recorded step would run on, as long as the error is held
                found.drop()
            raise
        assert found is not None
        return found

    def sharing(
        self, model: nn.Module, profile: Profile, offload: Offload | None, device: torch.device
    ) -> tuple[Profile, Offload | None]:
        """Return a recorded step with the tensors that are the same on all ranks, if `offload` keeps parts of such.

        See `with_parts`. If such tensors once differed in a later step, no parts are kept any more.
        """
        if offload is None or not offload.is_shard:
            return profile, offload
        if any(map(is_unlike, self.refused.values())):
            return profile, None
        return with_parts(self._agree, model, profile, offload, device, runs_collectives=self.runs_collectives)

    def plan(self, need_bytes: int, make: Callable[[], Ready], adopt: Callable[[Plan, str], Ready | None]) -> Ready:
        """Return a first plan for the step that begins; if replays run collectives, also any later one.

        Args:
            need_bytes: the peak of this rank's plain step.
            make: makes a plan on this rank.
            adopt: takes another rank's plan, and why it is unfit (else empty). Returns None if the plan does not hold
                this rank's step to what was asked for.

        Raises:
            AutockptError: the error of the first rank that has one; raised on all.
        """
        if not self.waits:
            return make()
        needy = self._agree({"need": need_bytes}, self._neediest)
        if not self.runs_collectives:
            try:
                return self._own_plan(needy[0], make, adopt)
            except (Infeasible, TooCostly):
                if not self._gathers:
                    raise
            # All ranks plan again, with replays that gather.
            self.runs_collectives, self._ended, self._own = True, False, None
        return self._one_plan(needy, make, adopt)

    def _own_plan(self, first: int, make: Callable[[], Ready], adopt: Callable[[Plan, str], Ready | None]) -> Ready:
        """Return the plan of the rank whose step needs most, or another one if that does not hold this rank's step."""
        ready, said, told = self._made_by(first, make)
        if (plan := self._plan_of(told, first)) is not None:
            ready, said = self._tried(lambda: adopt(plan, "") or make())
        self._ended = True
        self._agree(said, self._raise_first)
        assert ready is not None
        return ready

    def _one_plan(
        self, needy: Sequence[int], make: Callable[[], Ready], adopt: Callable[[Plan, str], Ready | None]
    ) -> Ready:
        """Return one plan for all ranks: of the rank that needs most, or of the next one if that does not suit all."""
        for number, first in enumerate(needy):
            ready, said, told = self._made_by(first, make)
            self._raise_first([told if rank == first else {} for rank in self._ranks.members])
            if (plan := self._plan_of(told, first)) is not None:
                unfit = told["unfit"] or (NOT_FOR_ALL if number + 1 == len(needy) else "")
                ready, said = self._tried(functools.partial(adopt, plan, unfit))
            self._agree(said, self._raise_first)
            if self._agree({"does": ready is not None}, lambda every: all(each["does"] for each in every)):
                assert ready is not None
                return ready
        raise NotApplicable(NOT_FOR_ALL)

    def _made_by(self, first: int, make: Callable[[], Ready]) -> tuple[Ready | None, dict[str, Any], Mapping[str, Any]]:
        """Have one rank make a plan. Return the plan on that rank, what this one has to say, and what that one said."""
        ready, said = self._tried(make) if self._ranks.own == first else (None, {})
        return ready, said, self._agree(said, lambda every: every[self._ranks.members.index(first)])

    def _plan_of(self, told: Mapping[str, Any], first: int) -> Plan | None:
        """Return the plan that another rank has made; None on that rank, or if it has failed."""
        if self._ranks.own == first or "plan" not in told:
            return None
        return decode(told["plan"].encode(), Plan, source=f"the plan of rank {first}")

    def leave(self, why: str, error: BaseException | None = None) -> None:
        """Tell the other ranks, which may wait, `why` this one makes no plan; with its `error`, if there is one."""
        ended_before, self._ended = self._ended, True
        if not ended_before and self.several:
            words = why if error is None else f"{why} ({told_as(error)})"
            with contextlib.suppress(RuntimeError):  # the process group is gone: nobody listens, and `error` counts
                self._ranks.tell({"left": words, "failed": error is not None})

    def _hash_of(self, plan: Plan) -> str:
        """Return what tells this plan from others; it is the same one in most steps."""
        if self._hashed is None or self._hashed[0] is not plan:
            self._hashed = plan, what_runs(plan)
        return self._hashed[1]

    def _agree(self, value: Any, choose: Choose[V], *, parting: bool = False) -> V:
        """Agree as `Ranks.agree` does. If a rank has stopped planning, the ranks agree no more, and all raise.

        Args:
            value: what this rank says.
            choose: makes one result of what all ranks say.
            parting: whether to wait only a short time, since a rank may never come.

        Raises:
            NotApplicable: a rank stopped because it failed.
            StoppedPlanning: a rank stopped for another reason.
        """

        def chosen(every: Sequence[Any]) -> V:
            if stopped := left_of(self._ranks.members, every):
                self._ended = True
                raise stopped
            return choose(every)

        return self._ranks.agree(value, chosen, parting=parting)

    def _agreed(self, every: Sequence[Mapping[str, Any]]) -> Next:
        """Return how a step begins on the ranks that can plan or have a plan."""
        self._raise_first(every)
        if unequal := unequal_of(self._ranks.members, every):
            self._ended = True
            raise unequal
        self.refused = {call: why for each in every for call, why in each["refused"].items()}
        if not all(each["able"] for each in every):
            return "wait"
        under = {each["under"] for each in every}
        return "plan" if len(under) > 1 or "" in under else "go on"

    def _neediest(self, every: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ranks by what their steps need, most first."""
        needs = dict(zip(self._ranks.members, (each["need"] for each in every), strict=True))
        return sorted(needs, key=lambda rank: (-needs[rank], rank))

    def _tried(self, make: Callable[[], Ready | None]) -> tuple[Ready | None, dict[str, Any]]:
        """Make a plan. Return it, or None if that failed; and what to tell the other ranks of it."""
        try:
            ready = make()
        except Exception as error:  # whatever it is, the others must not wait for this rank
            self._own = error
            return None, plain_error(error, "planned")
        return ready, {} if ready is None else {"plan": encode(ready.plan).decode(), "unfit": ready.unfit}

    def _raise_first(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Raise the first rank's error, if there is any. Then the ranks agree no more."""
        self._ended = self._ended or any("error" in each for each in every)
        refuse_failed(self._ranks, every, self._own)
