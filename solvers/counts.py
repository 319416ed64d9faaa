"""Equal blocks: how many take which entry of their menu, and not which block takes which.

    entry      a  a  a │ b  b  b  b │ plain  plain        most restored bytes first: while the early blocks are
    block      0  1  2 │ 3  4  5  6 │   7      8          restored, the late ones have given back what they held

A binary for each block and entry has one optimum in a million equal guises; a count for each entry has one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from .backends import Backend, pulp_module, run
from .blocks import block_chain
from .chain import Chain, by_room
from .families import Plan
from .formulation import Formulation

__all__ = ["count_plans"]

FEWEST = 4
"""Equal blocks below which a binary each is as good."""

SHARE = 0.3
"""Share of the time that is left for one programme."""

TRIES = 3
"""Programmes solved: the first is nearly always the best."""

CLOSE = 1e-3
"""Share of the cost at which a programme is solved well enough for a start."""

SCALE = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Blocks with equal menus.

    Attributes:
        options: per block, in forward order, the candidate for each entry; -1 where the block is kept. Entries that
            restore most come first.
        seconds: per entry.
        held_bytes: per entry, at the end of forward.
        restored_bytes: per entry, how far the level of a block's own backward rises above what it held.
    """

    options: tuple[tuple[int, ...], ...]
    seconds: tuple[float, ...]
    held_bytes: tuple[float, ...]
    restored_bytes: tuple[float, ...]


def count_plans(form: Formulation, budget_bytes: int, *, deadline: float, backend: Backend) -> Iterator[Plan]:
    """Plans that recompute blocks of the block chain by entries of their menus, positions by restored bytes.

    Args:
        form: the problem, reduced.
        budget_bytes: highest peak allowed.
        deadline: on the clock of `time.perf_counter`.
        backend: who solves the programme.

    Returns:
        Plans near the budget; none where hardly any blocks are equal.

    Raises:
        BackendError: the backend failed, or answered nonsense.

    A heuristic: exact for one kind of blocks in a chain, up to what the base changes between them; a programme of
    two columns an entry and kind, whatever the number of blocks.
    """
    problem = form.ledger.problem
    chain = block_chain(problem)
    spans: dict[tuple[int, int], list[int]] = {(e, problem.calls[e].stop): [] for e in chain.elements}
    for c, candidate in enumerate(problem.candidates):
        if (candidate.start, candidate.stop) in spans:
            spans[candidate.start, candidate.stop].append(c)
    menus = [tuple(entries) for entries in spans.values() if entries]
    alike: dict[tuple[float, ...], int] = {}
    for entries in menus:
        seconds = tuple(problem.candidates[c].recompute_seconds for c in entries)
        alike[seconds] = alike.get(seconds, 0) + 1
    if max(alike.values(), default=0) < FEWEST or max(map(len, alike)) < 2:
        return
    arcs = Chain.of(form)
    kinds = _kinds(arcs, menus)
    taken = sum(len(kind.options) * kind.held_bytes[kind.options[0].index(-1)] for kind in kinds)
    kept_bytes = float(arcs.held_bytes[len(arcs.form.active) :].sum()) - taken  # of all other calls

    def plan_for(room_bytes: int) -> Plan | None:
        left = deadline - time.perf_counter()
        room = room_bytes - arcs.apex_bytes - kept_bytes
        counts = _counts(kinds, room, room_bytes - kept_bytes, SHARE * left, backend) if left > 0 else None
        if counts is None:
            return None
        chosen: list[int] = []
        for kind, numbers in zip(kinds, counts, strict=True):
            order = [entry for entry, n in enumerate(numbers) for _ in range(n)]
            chosen += [options[entry] for options, entry in zip(kind.options, order, strict=True)]
        return tuple(sorted(c for c in chosen if c >= 0))

    yield from by_room(form.ledger, budget_bytes, plan_for, tries=TRIES)


def _kinds(arcs: Chain, menus: list[tuple[int, ...]]) -> list[_Kind]:
    """Blocks by what their entries cost and hold; kinds in forward order of their first blocks."""
    problem, n_candidates = arcs.form.ledger.problem, len(arcs.form.active)
    column = {c: i for i, c in enumerate(arcs.form.active)}
    grouped: dict[tuple[tuple[float, float], ...], list[tuple[tuple[int, ...], tuple[float, ...]]]] = {}
    for entries in sorted(menus, key=lambda entries: problem.candidates[entries[0]].start):
        known = [c for c in entries if c in column]
        if not known:
            continue
        first, last = arcs.form.arcs[column[known[0]]]
        skips = slice(n_candidates + first, n_candidates + last)
        kept = float(arcs.held_bytes[skips].sum())
        rows = [
            (max(float(arcs.own_peak_bytes[i] - arcs.held_bytes[i]), 0.0), c, cost, float(arcs.held_bytes[i]))
            for c in known
            for i, cost in [(column[c], problem.candidates[c].recompute_seconds)]
        ]
        rows.append((max(float(arcs.own_peak_bytes[skips].max()) - kept, 0.0), -1, 0.0, kept))
        rows.sort(key=lambda row: (-row[0], row[2], row[1]))
        key = tuple((cost, held) for _, _, cost, held in rows)
        grouped.setdefault(key, []).append((tuple(row[1] for row in rows), tuple(row[0] for row in rows)))
    return [
        _Kind(
            options=tuple(options for options, _ in blocks),
            seconds=tuple(cost for cost, _ in key),
            held_bytes=tuple(held for _, held in key),
            restored_bytes=blocks[-1][1],
        )
        for key, blocks in grouped.items()
    ]


def _counts(
    kinds: list[_Kind], held_room: float, peak_room: float, time_limit_seconds: float, backend: Backend
) -> list[list[int]] | None:
    """How many blocks of each kind take each entry, at least cost; None if nothing fits or was found in time."""
    pulp = pulp_module()
    lp = pulp.LpProblem("counts", pulp.LpMinimize)
    cost_unit = max(max(kind.seconds) for kind in kinds) / SCALE or 1.0
    size_unit = max(sum(len(kind.options) * max(kind.held_bytes) for kind in kinds), 1.0) / SCALE
    cost, held = [], []
    columns: list[list[object]] = []
    for k, kind in enumerate(kinds):
        n_blocks = len(kind.options)
        numbers = [lp.add_variable(f"n{k}_{e}", 0, n_blocks, pulp.LpInteger) for e in range(len(kind.seconds))]
        columns.append(numbers)
        lp.addConstraint(pulp.lpSum(numbers) == n_blocks)
        for e, number in enumerate(numbers):
            cost.append((number, kind.seconds[e] / cost_unit))
            held.append((number, kind.held_bytes[e] / size_unit))
            used = lp.add_variable(f"u{k}_{e}", 0, 1, pulp.LpInteger)
            lp.addConstraint(number <= n_blocks * used)
            # While the last block of this entry is restored, those before it are held.
            least = min(kind.restored_bytes)
            above = (kind.restored_bytes[e] - least) / size_unit
            if above > 0:
                free = (peak_room - least) / size_unit
                lp.addConstraint(pulp.LpAffineExpression(held) + above * used <= max(free, 0.0))
    lp.setObjective(pulp.LpAffineExpression(cost))
    lp.addConstraint(pulp.LpAffineExpression(held) <= held_room / size_unit)
    run(lp, backend, time_limit_seconds=time_limit_seconds, near=CLOSE)
    if lp.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    counts = [[round(pulp.value(number) or 0.0) for number in numbers] for numbers in columns]
    whole = all(sum(numbers) == len(kind.options) for kind, numbers in zip(kinds, counts, strict=True))
    return counts if whole else None
