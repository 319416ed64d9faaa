"""Plans of compiled code: which operators of the compiler's graphs run again. JSON, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from .errors import NotApplicable
from .plan import Plan
from .profile import Profile
from .text.amounts import Bytes, Seconds

if TYPE_CHECKING:
    from .timeline import MemoryTimeline


class JointGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What runs again in one graph of a compiled step.

    Attributes:
        signature: what all graphs share that have the same operators on the same shapes, in order.
        name: where in the model it begins and ends.
        operators: how many operators its forward has.
        again: places among its nodes of the operators that run again.
    """

    signature: str
    name: str = ""
    operators: int = 0
    again: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()


class CompiledPlan(Plan, frozen=True, kw_only=True, tag="autockpt.compiled-plan/1"):
    """What runs again inside what ``torch.compile`` made of a model: operators of its graphs, and no calls.

    It is a plan without segments. Its peaks and `recompute_seconds` are predicted from the compiler's own graphs.

    Attributes:
        graphs: what runs again in each of its joint graphs; graphs with the same signature are cut alike.
        forward_seconds: of forward, as a roofline says, which `recompute_seconds` are held against.
        modules: qualified names of modules, with the seconds of what runs again in each, most first.
        tried_bytes: peaks of the first step in the code that inductor generated for this plan and for those before it,
            in the order in which they were tried; empty where graphs alone say what is held.
    """

    PAGE: ClassVar[str] = "explain.results.compiled_page"

    graphs: tuple[JointGraph, ...] = ()
    forward_seconds: Seconds = 0.0
    modules: tuple[tuple[str, Seconds], ...] = ()
    tried_bytes: tuple[Bytes, ...] = ()

    @property
    def again(self) -> dict[str, tuple[int, ...]]:
        """By the signature of a joint graph, the places among its nodes of the operators that run again."""
        return {each.signature: each.again for each in self.graphs}

    @property
    def share(self) -> float:
        """Share of forward that runs again, by seconds; a ratio."""
        return self.recompute_seconds / self.forward_seconds if self.forward_seconds else 0.0

    def timeline(self, profile: Profile) -> MemoryTimeline:
        """Refuse: a recorded step has calls, and this plan has none of them.

        Raises:
            NotApplicable: always.
        """
        raise NotApplicable(
            "the plan is one of compiled code, and a profile is that of the eager step. plan.explain() shows its peak."
        )

    def __str__(self) -> str:
        return self.explain()
