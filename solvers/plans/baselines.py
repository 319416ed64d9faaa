"""Simple ways to choose, by name: what people do without a solver.

    none      ░░░░░░░░░░░░       nothing is recomputed
    all       ▓|▓|▓|▓|▓|▓|       every block by itself
    block     ▓|▓|▓|░░░░░░       the first n blocks
    uniform   ▓▓|▓▓|▓▓|▓▓|       all blocks, in segments of n
    sqrt      ▓▓▓|▓▓|▓▓▓|▓       all blocks, cut where a segment has saved so many bytes
    speed     ▒|▒|▒|░░░░░░       the first n blocks, except what multiplies matrices

    always, never                `all` and `none`, by GPipe's names
    except_last                  every block by itself, but none of the last microbatch
    uniform:N, block:N           `uniform` and `block` for N layers, whatever the budget

Each yields a few plans: tuples of indices into ``judge.problem.candidates``. None looks at the budget: `registry` takes
the cheapest that fits. "Block" is an element of the block chain (`blocks`), embeddings and heads among them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ..common import Plan
from ..judge import Judge
from ..problem import Problem
from .blocks import BlockChain, block_chain, layer_chains, microbatches

GRID = 12  # values of b from the √n point to the whole chain; half as many below the √n point
MOST_PLANS = 200  # numbers of blocks that are tried where there are more

BELOW = math.sqrt(2)
"""How far below the √n point b is searched, as in the paper. Below that runs shrink to single elements, which is
what `block` and `uniform` are for."""


def none(judge: Judge) -> Iterator[Plan]:
    """Recompute nothing.

    One plan; O(1).
    """
    yield ()


def every_block(judge: Judge) -> Iterator[Plan]:
    """Recompute every element of the block chain as a segment of its own.

    Source: the usual switch of model libraries ("gradient checkpointing": one segment a block).
    One plan; O(problem).
    """
    yield tuple(block_chain(judge.problem).runs(1))


def first_blocks(judge: Judge) -> Iterator[Plan]:
    """Recompute the first n elements of the block chain, each by itself, with the smallest n that fits.

    Source: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models";
    Megatron-LM's ``--recompute-method block``.
    Exact on its n + 1 plans for n elements; O(n × problem).
    """
    every = tuple(block_chain(judge.problem).runs(1))
    for n in _numbers(0, len(every)):
        yield every[:n]


def uniform(judge: Judge) -> Iterator[Plan]:
    """Recompute the whole block chain in segments of n elements, with the best n.

    Segments stay inside one group of siblings.

    Source: Korthikanti et al. 2022, as for `block`; Megatron-LM's ``--recompute-method uniform``.
    Exact on its n plans for n elements; O(n × problem).
    """
    chain = block_chain(judge.problem)
    longest = max((candidate.length for candidate in judge.problem.candidates), default=1)
    for length in _numbers(1, max(min(len(chain.elements), longest), 1)):
        yield tuple(chain.runs(length))


def _numbers(first: int, last: int) -> list[int]:
    """All whole numbers between two, or `MOST_PLANS` of them."""
    return sorted({first + (last - first) * i // MOST_PLANS for i in range(MOST_PLANS + 1)})


def sqrt(judge: Judge) -> Iterator[Plan]:
    """Recompute the block chain in segments that save about b bytes each, with the best b.

    Segments that are not needed are dropped.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost", algorithm 3, with the budget on
    bytes and a geometric grid of b, open towards longer segments.
    Heuristic; O((grid + n) × problem) for n elements.
    """
    chain = block_chain(judge.problem)
    for most_bytes in byte_grid(chain):
        yield chain.joined([(i, i) for i in range(len(chain.elements))], most_bytes)
    yield ()


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


def speed(judge: Judge) -> Iterator[Plan]:
    """Recompute the first n blocks but for their matrix products, convolutions and attention; the smallest n that fits.

    In each block it takes the candidates that multiply nothing and together free most bytes at the plain peak. Times do
    not matter: each plan takes the first blocks of the same row.

    Source: the "speed" collection of T. Salimans and Y. Bulatov 2018, "Fitting larger networks into memory" (OpenAI):
    outputs of matrix products and convolutions are kept; Korthikanti et al. 2022: attention and element-wise work are
    what is worth recomputing.
    Exact on its n + 1 plans for n blocks; O(n × problem).
    """
    problem, starts = judge.problem, list(block_chain(judge.problem).elements)
    freed_at = judge.freed_at(int(judge.levels(()).argmax()))
    freed: list[dict[int, int]] = [{} for _ in starts]
    for c, candidate in enumerate(problem.candidates):
        block = bisect_right(starts, candidate.start) - 1
        if block >= 0 and candidate.stop <= problem.calls[starts[block]].stop and not candidate.multiplies:
            freed[block][c] = freed_at[c]
    parts = [_freeing_most(problem, some) for some in freed]
    for n in _numbers(0, len(parts)):
        yield tuple(c for part in parts[:n] for c in part)


def _freeing_most(problem: Problem, freed: Mapping[int, int]) -> list[int]:
    """Candidates that do not overlap and free most together, if what each one frees adds up; O(n log n)."""
    candidates = problem.candidates
    best: list[tuple[int, list[int]]] = [(0, [])]
    stops = [0]
    for c in sorted(freed, key=lambda c: (candidates[c].stop, candidates[c].recompute_seconds)):
        n_bytes, before = best[bisect_right(stops, candidates[c].start) - 1]
        if n_bytes + freed[c] > best[-1][0]:
            best.append((n_bytes + freed[c], [*before, c]))
            stops.append(candidates[c].stop)
    return best[-1][1]


def except_last(judge: Judge) -> Iterator[Plan]:
    """Recompute every element of the block chain by itself, but for those of the last microbatch.

    A step of one microbatch has only the last: nothing is recomputed then.

    Source: Kim et al. 2020, "torchgpipe: on-the-fly pipeline parallelism for training giant models": its
    ``checkpoint="except_last"``, which is the default there.
    One plan; O(problem).
    """
    number = microbatches(judge.problem)
    last = max(number, default=0)
    chosen = block_chain(judge.problem).runs(1)
    yield tuple(c for c in chosen if number[judge.problem.candidates[c].start] < last)


def uniform_layers(judge: Judge, number: int) -> Iterator[Plan]:
    """Recompute all layers in segments of `number` each.

    Each row of layers begins with a segment of its own: those of encoder and decoder, of every microbatch.

    Source: Megatron-LM's ``--recompute-granularity full --recompute-method uniform --recompute-num-layers N``.
    One plan; O(problem).
    """
    yield tuple(c for chain in layer_chains(judge.problem) for c in chain.runs(number))


def first_layers(judge: Judge, number: int) -> Iterator[Plan]:
    """Recompute the first `number` layers of each row of layers, each by itself.

    Source: Megatron-LM's ``--recompute-granularity full --recompute-method block --recompute-num-layers N``.
    One plan; O(problem).
    """
    yield tuple(c for chain in layer_chains(judge.problem) for c in chain.first(number).runs(1))


BASELINES: Mapping[str, Callable[[Judge], Iterator[Plan]]] = MappingProxyType(
    {"none": none, "all": every_block, "block": first_blocks, "uniform": uniform, "sqrt": sqrt, "speed": speed}
)
"""Every baseline by its name. A new one is added here; then `solver=` and `--solver` know it.

Its plans are also among those with which `auto`, `ilp` and `frontier` begin (`instant`).
"""

SPARING = frozenset({"speed"})
"""Baselines that repeat no product: their candidates are parts of calls in which nothing that multiplies runs again."""

TRIMMED = frozenset({"sqrt"})
"""Baselines whose plans lose the segments that they do not need."""

NAMED_PLANS: Mapping[str, Callable[[Judge], Iterator[Plan]]] = MappingProxyType(
    {"always": every_block, "never": none, "except_last": except_last}
)
"""Solvers of one plan that somebody else has named. Nobody begins with these plans: `BASELINES` have better ones."""

BY_LAYERS: Mapping[str, Callable[[Judge, int], Iterator[Plan]]] = MappingProxyType(
    {"uniform": uniform_layers, "block": first_layers}
)
"""Solvers that are told a number of layers after a colon."""
