"""Time steps of a pipeline whose first stage replays while it waits, beside the same steps with replays in backward.

python -m benchmarks.ranks.early         # all rows, five minutes
python -m benchmarks.ranks.early sleep   # those with this word; the others stay
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import autockpt
from benchmarks.environment import table, write_page
from tests.doors import governor_of
from tests.ranks.early import put_off
from tests.ranks.models import tokens, told
from tests.ranks.pipelines import Parts, stood_bytes
from tests.ranks.world import World

FILE, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).with_suffix(".md")
WAYS = ("in backward", "early")
"""When the first replay of a backward runs."""

WIDTH, DEPTHS, ROWS, LENGTH = 128, (4, 8), 4, 64
"""Width of the model, blocks of each stage, and the rows and tokens of a microbatch, where stages compute."""

NAPS, NAP_SECONDS = (2, 4), 0.03
"""Blocks of each stage where they sleep, and for how long a forward does; a backward sleeps twice as long."""

COLD, PAIRS = 6, 12
"""Steps before the first that is timed: recorded, timed, rehearsed, planned. And how often both ways are timed."""


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each row, and what it is given."""
    always: dict[str, Any] = {"recompute": "blocks.*", "share": 1.0}
    for schedule in ("gpipe", "1f1b"):
        for parts in (2, 4):
            given = {"schedule": schedule, "parts": parts, "naps": True}
            yield f"{schedule}, {parts} microbatches, sleep", given | always
        yield f"{schedule}, 4 microbatches, compute", {"schedule": schedule, "parts": 4, **always}
        yield f"{schedule}, 4 microbatches, compute, 60%", {"schedule": schedule, "parts": 4, "share": 0.6}


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        time.sleep(NAP_SECONDS)
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(2 * NAP_SECONDS)
        return gradient


class Sleeping(nn.Module):
    """A block that sleeps in forward and in backward, in place of a device of its own that computes."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.block(_Nap.apply(hidden))
        return made


class Training:
    """One rank's stage, which takes the same step over and over: its optimizer changes nothing.

    Args:
        rank: this one, of two.
        schedule, parts: the schedule and its microbatches.
        naps: whether its blocks sleep.

    Attributes:
        arrived: when the gradient of the last microbatch came: the clock, and the processor's seconds of this process.
    """

    def __init__(self, rank: int, schedule: str, parts: int, *, naps: bool) -> None:
        sizes = {"depth": NAPS[rank]} if naps else {"width": WIDTH, "depth": DEPTHS[rank]}
        self.model, self.arrived = Parts(rank, schedule, **sizes), (0.0, 0.0)
        stage: Any = self.model.stages[0]
        if naps:
            stage.blocks = nn.ModuleList(map(Sleeping, stage.blocks))
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self._batch = tokens(0, 0, rows=ROWS * parts, length=LENGTH)
        self._stages, self._runs = self.model.wrapped(parts)
        self.model.stages[0].register_forward_hook(self._hooks)

    def step(self, way: str = "early") -> dict[str, float]:
        """Take a step; return its seconds, those from when the last gradient was there, and the processor's then."""
        self._optimizer.zero_grad()
        torch.manual_seed(0)
        args, named = self.model.given(self._batch)
        distributed.barrier()
        began = time.perf_counter()
        with put_off(self.model.stages[0]) if way == "in backward" else nullcontext():
            self._runs.step(*args, **named)
        ended, worked = time.perf_counter(), time.process_time()
        self._optimizer.step()
        return {"step": ended - began, "end": ended - self.arrived[0], "processor": worked - self.arrived[1]}

    def start_bytes(self) -> int:
        """Return what stands as the next step begins."""
        for stage in self._stages:
            stage.clear_runtime_states()
        self._optimizer.zero_grad()
        gc.collect()
        return stood_bytes(self.model, self._optimizer, self._stages)

    def told(self) -> dict[str, str]:
        """Tell the bits of the gradients of the last step."""
        return told({name: each.grad for name, each in self.model.named_parameters()})

    def _hooks(self, stage: Any, given: Any, made: torch.Tensor) -> None:
        made.register_hook(self._arrives)

    def _arrives(self, gradient: torch.Tensor) -> None:
        self.arrived = time.perf_counter(), time.process_time()


def row(rank: int, *, schedule: str, parts: int, share: float, naps: bool = False, **pins: Any) -> dict[str, Any]:
    """Time a rank's steps both ways in turns, and measure one of each."""
    gc.freeze()
    plain = Training(rank, schedule, parts, naps=naps)
    plain.step()
    plain.step()
    budget = plain.start_bytes() + int(share * autockpt.measure(plain.step).step_bytes)
    own = Training(rank, schedule, parts, naps=naps)
    autockpt.apply(own.model.asked, budget, **pins)
    for _ in range(COLD):
        own.step()
    held, same, pairs = {}, True, []
    for way in WAYS:
        held[way] = own.start_bytes() + autockpt.measure(functools.partial(own.step, way)).step_bytes
    for number in range(PAIRS):
        pairs.append({})
        for way in WAYS if number % 2 else WAYS[::-1]:
            pairs[-1][way] = own.step(way)
            same = same and own.told() == plain.told()
    governor: Any = governor_of(own.model.stages[0])
    planned = governor.handle.table
    last = (planned.plan.segments[number] for number in planned.early)
    return {
        "pairs": pairs,
        "same": same,
        "held": held,
        "predicted": planned.plan.peak_bytes,
        "budget": budget,
        "early": sum(len(each.calls) for each in last if f"#{parts - 1}" in each.calls[0]),
    }


def show(found: dict[str, list[dict[str, Any]]]) -> str:
    """The summary, and a line a row: times of the first stage, memory and bits of both."""
    every = [each for ranks in found.values() for each in ranks]
    within = sum(max(each["held"].values()) <= min(each["predicted"], each["budget"]) for each in every)
    exact = sum(each["same"] for each in every)
    heads = ["schedule", "step, ms", "early / in backward", "after the last gradient, ms", "early / in backward"]
    heads += ["less by, ms", "calls replayed early"]
    heads += ["processor, ms", "early / in backward", "measured / predicted peak, early", "bits"]
    return (
        f"{len(found)} rows; of {len(every)} ranks {within} were within predicted peak and budget both ways, {exact} "
        f"bit for bit the plain step in all steps.\n\n"
        f"{table(heads, ([name, *_cells(ranks)] for name, ranks in found.items()))}"
    )


def _cells(ranks: list[dict[str, Any]]) -> list[object]:
    pairs = ranks[0]["pairs"]
    spared = statistics.median(each["in backward"]["end"] - each["early"]["end"] for each in pairs)
    step, end, processor = ((_middle(pairs, what), _ratio(pairs, what)) for what in ("step", "end", "processor"))
    return [
        *step,
        *end,
        f"{1e3 * spared:.1f}",
        ranks[0]["early"],
        *processor,
        " and ".join(f"{each['held']['early'] / each['predicted']:.4f}" for each in ranks),
        "equal" if all(each["same"] for each in ranks) else "differ",
    ]


def _middle(pairs: list[dict[str, dict[str, float]]], what: str) -> str:
    return f"{1e3 * statistics.median(each['in backward'][what] for each in pairs):.1f}"


def _ratio(pairs: list[dict[str, dict[str, float]]], what: str) -> str:
    ratios = [each["early"][what] / each["in backward"][what] for each in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows with one of these words")
    words = parser.parse_args().words
    found = json.loads(FILE.read_text())["rows"] if words and FILE.exists() else {}
    world = World(Path(tempfile.mkdtemp()), 2)
    for name, given in rows():
        if not words or any(word in name for word in words):
            found[name] = world.run("benchmarks.ranks.early", "row", **given)
            print(name, *_cells(found[name]), sep="\n  ", flush=True)
            write_page(PAGE, FILE, {"rows": found}, show(found))
    world.close()


if __name__ == "__main__":
    main()
