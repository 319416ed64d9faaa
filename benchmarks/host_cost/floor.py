"""Time every block of a model recomputed by frames, by torch's checkpoints, and by two hooks that do nothing else.

Such hooks are the least that an eager method can do: they know neither states nor generators, check nothing and keep
what a replay brings back too long, so that gradients are wrong where dropout draws. What they cost over the plain step
is a floor for methods that recompute whole blocks in Python.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Plan
from benchmarks.environment import table, with_steady_allocator, write
from benchmarks.frontier.blocks import find_blocks
from benchmarks.frontier.derive import standard_error
from benchmarks.frontier.measure import step_seconds
from benchmarks.frontier.methods import patched
from benchmarks.models import TRANSFORMERS, build
from tests.zoo import Case

FOLDER = Path(__file__).with_suffix("")
ROUNDS = 24

Way = Callable[[Case], AbstractContextManager[None]]
Forward = Callable[..., Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(TRANSFORMERS), choices=list(TRANSFORMERS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with_steady_allocator()
    torch.set_num_threads(1)
    rows = [row for name in arguments.models for row in run_model(name, arguments.rounds)]
    write(FOLDER, {"rows": rows}, report(rows))


def run_model(name: str, rounds: int) -> list[dict[str, Any]]:
    """Time the ways in turns, each beside a plain step."""
    case = build(name)
    ways: dict[str, Way] = {
        "bare hooks": functools.partial(recomputing, way=bare),
        "autockpt": planned,
        "torch, reentrant": functools.partial(recomputing, way=functools.partial(checkpointed, use_reentrant=True)),
        "torch": functools.partial(recomputing, way=functools.partial(checkpointed, use_reentrant=False)),
    }
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    case.step()
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for way, make in list(ways.items())[:: -1 if number % 2 else 1]:
                pair = []
                for step in (step_seconds, functools.partial(recomputed_seconds, make))[:: -1 if number % 2 else 1]:
                    pair.append(step(case))
                plain, own = pair[:: -1 if number % 2 else 1]
                ratios[way].append(own / plain)
            gc.collect()
    finally:
        gc.enable()
    rows = []
    for way, found in ratios.items():
        first, median, third = statistics.quantiles(found, n=4)
        error = standard_error((first, third), len(found))
        rows.append({"model": name, "way": way, "overhead": median - 1, "error": error, "pairs": len(found)})
    return rows


def recomputed_seconds(way: Way, case: Case) -> float:
    """Time a step that recomputes in some way, but not the first, which finds things out."""
    with way(case):
        case.step()
        return step_seconds(case)


@contextmanager
def planned(case: Case) -> Iterator[None]:
    """Recompute every block by a plan."""
    names = {id(module): name for name, module in case.model.named_modules()}
    calls = [f"{names[id(block)]}#0" for blocks in find_blocks(case.model) for block in blocks]
    autockpt.apply(case.model, plan=Plan.of(calls))
    try:
        yield
    finally:
        autockpt.remove(case.model)


@contextmanager
def recomputing(case: Case, *, way: Callable[[Forward], Forward]) -> Iterator[None]:
    """Give every block the forward that a way makes of its own."""
    blocks = [block for blocks in find_blocks(case.model) for block in blocks]
    with patched({block: way(block.forward) for block in blocks}):
        yield


def checkpointed(forward: Forward, *, use_reentrant: bool) -> Forward:
    """Recompute by torch, whose reentrant checkpoint takes no arguments by name."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(forward, **kwargs), *args, use_reentrant=use_reentrant)

    return run


def bare(forward: Forward) -> Forward:
    """Recompute by two hooks, until the last of what was saved is there again."""

    def run(*args: Any, **kwargs: Any) -> Any:
        found: list[Tensor] = []
        numbers = itertools.count()
        given = [leaf(each) for each in args]
        given_by_name = {name: leaf(each) for name, each in kwargs.items()}

        def fill(tensor: Tensor) -> None:
            found.append(tensor.detach())
            if len(found) == n_saved:
                raise Filled

        def unpack(number: int) -> Tensor:
            if not found:
                with (
                    contextlib.suppress(Filled),
                    torch.enable_grad(),
                    torch.autograd.graph.saved_tensors_hooks(fill, no_backward),
                ):
                    forward(*given, **given_by_name)
            return found[number]

        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: next(numbers), unpack):
            out = forward(*args, **kwargs)
        n_saved = next(numbers)
        return out

    return run


class Filled(Exception):
    """All that was saved is there again."""


def leaf(argument: Any) -> Any:
    """Detach an argument that is a tensor."""
    return argument.detach().requires_grad_(argument.requires_grad) if isinstance(argument, Tensor) else argument


def no_backward(packed: object) -> Tensor:
    """Refuse backward through a replay."""
    raise AssertionError("nothing goes back through a replay")


def report(rows: list[dict[str, Any]]) -> str:
    """Summary and table."""
    by_model: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_model.setdefault(row["model"], {})[row["way"]] = row
    ways = list(dict.fromkeys(row["way"] for row in rows))
    cells: list[list[str]] = []
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for model, found in by_model.items():
        floor = found["bare hooks"]["overhead"]
        for way in ways:
            ratios[way].append(found[way]["overhead"] / floor)
        said = [f"{found[way]['overhead']:.1%} ± {found[way]['error']:.1%}" for way in ways]
        cells.append([model, *said, str(found["autockpt"]["pairs"])])
    means = ", ".join(f"{way} {statistics.geometric_mean(ratios[way]):.2f}" for way in ways if way != "bare hooks")
    summary = f"Overhead over that of bare hooks, geometric mean over the models: {means}."
    return f"{summary}\n\n{table(['model', *ways, 'pairs'], cells)}"


if __name__ == "__main__":
    main()
