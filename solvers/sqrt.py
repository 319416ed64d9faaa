"""Chen's √n: cut the chain wherever the saved bytes reach b, and search over b.

saved     3   3   3   3   3   3   3   3   3        b = 8
runs    ├───────────┼───────────┼───────────┤      cut when the sum exceeds b

Every run is one segment, so only the boundaries between runs and one run at a time stay alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .blocks import BlockChain, block_chain
from .families import TIME_LIMIT_SECONDS, Plan, cheapest
from .ledger import Ledger
from .problem import Problem, Solution

GRID = 12
"""Values of b between the √n point and the whole chain; half as many below the √n point."""

BELOW = math.sqrt(2)
"""How far below the √n point b is searched, as in the paper. Below that runs shrink to single elements, which is
what `block` and `uniform` are for."""


def solve(problem: Problem, budget_bytes: int, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> Solution:
    """Recompute the block chain in runs that save about b bytes each, with the best b.

    Args:
        problem: the problem.
        budget_bytes: highest peak allowed.
        time_limit_seconds: not needed; it is instant.

    Returns:
        The cheapest plan that fits, without the segments that it does not need.

    Raises:
        Infeasible: no b fits.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost", algorithm 3, with the budget on
    bytes and a geometric grid of b, open towards longer runs.
    Heuristic; O((grid + n) × problem) for n elements.
    """
    ledger = Ledger.of(problem)
    return cheapest(ledger, sqrt_plans(ledger), budget_bytes=budget_bytes, solver="sqrt", trimmed=True)


def sqrt_plans(ledger: Ledger) -> Iterator[Plan]:
    """The plain plan, and plans for values of b around the √n point."""
    yield ()
    chain = block_chain(ledger.problem)
    for most_bytes in byte_grid(chain):
        yield tuple(_runs(chain, most_bytes))


def byte_grid(chain: BlockChain) -> Iterator[float]:
    """Values of b: a geometric grid from below the point where boundaries and the largest run balance.

    n is how many equal elements the bytes would make (total² over the sum of squares): dropouts and norms between
    the blocks do not count.
    """
    if not any(chain.saved_bytes):
        return
    total_bytes = float(sum(chain.saved_bytes))
    n = total_bytes**2 / sum(size**2 for size in chain.saved_bytes)
    middle_bytes = total_bytes / math.sqrt(n)
    for i in range(GRID // 2):
        yield middle_bytes / BELOW ** (1 - 2 * i / GRID)
    for i in range(GRID + 1):
        yield middle_bytes * (total_bytes / middle_bytes) ** (i / GRID)


def _runs(chain: BlockChain, most_bytes: float) -> Iterator[int]:
    """Walk the chain in forward order and cut before the saved bytes of a run exceed `most_bytes`.

    A run also ends where no candidate goes on: at the end of a group of siblings, or at a refused call.
    """
    first = 0
    while first < len(chain.elements):
        run, after, sum_bytes = chain.candidate(first, first), first + 1, chain.saved_bytes[first]
        while run is not None and after < len(chain.elements):
            sum_bytes += chain.saved_bytes[after]
            longer = chain.candidate(first, after)
            if longer is None or sum_bytes > most_bytes:
                break
            run, after = longer, after + 1
        if run is not None:
            yield run
        first = after
