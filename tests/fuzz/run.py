"""Draws and checks many cases, and counts what became of them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis.strategies import SearchStrategy

from tests.fuzz.check import PlainFails, Verdict, check
from tests.fuzz.containers import CONTAINERS
from tests.fuzz.loops import Loop, check_loop, loops
from tests.fuzz.strategy import cases
from tests.fuzz.timeless import without_times
from tests.fuzz.tree import LEAF_KINDS, Case, kinds_in

__all__ = ["LEAST_SELECTIVE_SHARE", "LEAST_SHARE", "Tally", "fuzz", "fuzz_loops"]

T = TypeVar("T")

LEAST_SHARE = 0.8
"""Share of the drawn plans that must be applied and replay something; else the drawing shows nothing."""

LEAST_SELECTIVE_SHARE = 1 / 3
"""Share of the drawn plans that must keep or skip units."""

CHUNK = 25
"""Cases drawn with one seed. Hypothesis makes new ones out of those before, so many seeds differ more than one."""

SHRINKING = (Phase.generate, Phase.target, Phase.shrink)


class Tally:
    """What became of the cases."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.failing_models = 0
        self.kinds: set[str] = set()

    def check(self, case: Case) -> None:
        """Check one case, and count it."""
        try:
            self.verdicts.append(check(case))
            self.kinds.update(kinds_in(case.tree))
        except PlainFails:
            self.failing_models += 1
            reject()

    def of(self, result: str) -> list[Verdict]:
        """Return the verdicts with this result."""
        return [verdict for verdict in self.verdicts if verdict.result == result]

    @property
    def replaying(self) -> int:
        """Number of plans that were applied and replayed something."""
        return sum(verdict.replays > 0 for verdict in self.verdicts)

    @property
    def share(self) -> float:
        """Share of the drawn plans that were applied and replayed something."""
        return self.replaying / max(len(self.verdicts), 1)

    @property
    def selective(self) -> int:
        """Number of plans that keep or skip units."""
        return sum(verdict.selective > 0 for verdict in self.verdicts)

    @property
    def glued(self) -> int:
        """Number of plans with segments that contain torch functions of their callers' own code."""
        return sum(verdict.glued > 0 for verdict in self.verdicts)

    @property
    def cut(self) -> int:
        """Number of plans with segments that are replayed in parts."""
        return sum(verdict.cut[0] > 0 for verdict in self.verdicts)

    @property
    def inner(self) -> int:
        """Number of plans with segments inside others."""
        return sum(verdict.cut[1] > 0 for verdict in self.verdicts)

    @property
    def selective_share(self) -> float:
        """Share of the drawn plans that keep or skip units."""
        return self.selective / max(len(self.verdicts), 1)

    def __str__(self) -> str:
        verdicts = self.verdicts
        lengths = [length for verdict in verdicts for length in verdict.segments]
        applied = sum(bool(verdict.segments) for verdict in verdicts)
        lines = [
            f"{len(verdicts)} cases ({self.failing_models} more drawn whose plain step fails)",
            f"{len(self.kinds)} kinds of nodes, of {len(LEAF_KINDS) + len(CONTAINERS)}",
            f"{applied} plans applied, {self.replaying} with replays ({self.share:.0%} of the cases), "
            f"{sum(verdict.replays for verdict in verdicts)} replays",
            f"{len(lengths)} segments, {sum(length > 1 for length in lengths)} of them runs of several calls, "
            f"{sum(verdict.selective for verdict in verdicts)} keep or skip units, in {self.selective} plans "
            f"({self.selective_share:.0%})",
            f"{sum(verdict.glued for verdict in verdicts)} segments with glue, in {self.glued} plans",
            f"{sum(verdict.cut[0] for verdict in verdicts)} segments replayed in parts, in {self.cut} plans",
            f"{sum(verdict.cut[1] for verdict in verdicts)} segments with others inside, in {self.inner} plans",
            *_counted("results", [verdict.result for verdict in verdicts]),
            *_counted("plans that failed aloud", [v.detail.partition(":")[0] for v in verdicts if v.result == "loud"]),
            *_counted("calls kept after a comparison", [v.detail for v in verdicts if v.result == "refused"]),
            *_counted("plans beyond what a replay sees", [v.detail for v in verdicts if v.result == "beyond replay"]),
            *_counted("not recorded", [v.detail for v in verdicts if v.result == "not recorded"]),
            *_counted("calls refused", [reason for verdict in verdicts for reason in verdict.refused]),
            "0 differences",
        ]
        return "\n".join(lines)


def _counted(title: str, names: Sequence[str]) -> list[str]:
    return [f"{title}:", *(f"  {count:5d}  {name}" for name, count in Counter(names).most_common())] if names else []


def fuzz(
    count: int,
    *,
    phases: Sequence[Phase] = SHRINKING,
    tally: Tally | None = None,
    progress: Callable[[Tally], object] = id,
) -> Tally:
    """Check `count` drawn cases, always the same.

    Args:
        count: how many.
        phases: Hypothesis' phases.
        tally: where they are counted.
        progress: called now and then.

    Raises:
        Difference: for the smallest case found that differs.
    """
    tally = tally if tally is not None else Tally()
    gc.collect()
    gc.freeze()  # profiling collects garbage first; what is older than the fuzzing need not be searched each time
    try:
        with without_times():
            for number, begin in enumerate(range(0, count, CHUNK)):
                _draw(min(CHUNK, count - begin), number, phases, tally)
                progress(tally)
    finally:
        gc.unfreeze()
    return tally


def fuzz_loops(count: int, *, progress: Callable[[Counter[str]], object] = id) -> Counter[str]:
    """Check `count` drawn loops, always the same; return how often what became of them.

    Raises:
        Difference: for the smallest loop found that differs.
    """
    found: Counter[str] = Counter()

    def check_one(loop: Loop) -> None:
        try:
            found[check_loop(loop).result] += 1
        except PlainFails:
            reject()
        progress(found)

    with without_times():
        for number, begin in enumerate(range(0, count, CHUNK)):
            _run_on(loops(), check_one, min(CHUNK, count - begin), number, SHRINKING)
    return found


def _draw(count: int, number: int, phases: Sequence[Phase], tally: Tally) -> None:
    _run_on(cases(), tally.check, count, number, phases)


def _run_on(
    strategy: SearchStrategy[T], check_one: Callable[[T], None], count: int, number: int, phases: Sequence[Phase]
) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(strategy)
    def run(case: T) -> None:
        check_one(case)

    run()
