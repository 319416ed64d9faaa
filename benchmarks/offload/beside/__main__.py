"""Moving tensors away, beside FairScale's and torch's own switches for it: peaks, time and exactness of whole steps.

    pip install --no-deps fairscale==0.4.13
    python -m benchmarks.offload.beside
    python -m benchmarks.offload.beside --fake      peaks on the fake CUDA device, which is no GPU

On a CPU the host's memory is the device's, so what FairScale and `save_on_cpu` move stays where it is counted. On the
fake device it leaves. Nothing there says what time it takes.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if "--fake" in sys.argv:  # before transformers is imported, which remembers what devices it found
    from tests.fake_cuda import bindings

    bindings.install()

import autockpt
from autockpt import Offload
from autockpt._stash.plan_stash import with_measured_rates
from benchmarks.environment import environment, table, with_steady_allocator, write_parts
from benchmarks.frontier.blocks import find_blocks
from benchmarks.frontier.methods import Applied, Method
from benchmarks.frontier.peers import uniform
from benchmarks.frontier.run import prepare, run_method
from benchmarks.models import build
from tests.zoo import Case, loss_of

if TYPE_CHECKING:
    from autockpt import Plan

HERE = Path(__file__).parent
MODELS = ("gpt2", "resnet50", "unet")
MIB = 2**20
FOLDER = Path(tempfile.gettempdir())
"""Where autockpt's files are, which have no names there."""


@contextmanager
def fairscale(case: Case, *, moves: bool) -> Iterator[Applied]:
    """Checkpoint each block with FairScale's wrapper. It cannot be taken off again: the model is not used after it."""
    from fairscale.nn.checkpoint import checkpoint_wrapper

    for blocks in find_blocks(case.model):
        for block in blocks:
            checkpoint_wrapper(block, offload_to_cpu=moves)
    yield Applied(case=case)


class OnCpu(Case):
    """A case of which every saved tensor waits on the CPU, by torch's own hooks."""

    def forward(self) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return super().forward()


@contextmanager
def save_on_cpu(case: Case) -> Iterator[Applied]:
    """Have every saved tensor wait on the CPU."""
    yield Applied(case=OnCpu(case.model, case.kwargs))


@contextmanager
def planned(case: Case, *, offload: str | None, at: Callable[[], int] | None = None) -> Iterator[Applied]:
    """Train under a plan of autockpt's: the lowest peak, or a budget above what stands."""
    for parameter in case.model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    profile = autockpt.profile(case.model, case.kwargs, loss=loss_of)
    case.model.zero_grad()
    budget: int | str = "lowest" if at is None else profile.static.total_bytes + at()
    rated = None if offload is None else with_measured_rates(Offload.of(offload), next(case.model.parameters()).device)
    plan: Plan = autockpt.solve(profile, budget, offload=rated)
    autockpt.apply(case.model, plan=plan)
    try:
        yield Applied(case=case, facts={"predicted_overhead": plan.recompute_overhead, "moved_bytes": moved(plan)})
    finally:
        autockpt.remove(case.model)


def moved(plan: Plan) -> int:
    """Bytes that wait elsewhere."""
    return sum(segment.moved_bytes for segment in plan.segments)


def ways(place: str) -> dict[str, Callable[[Case], AbstractContextManager[Applied]]]:
    """Every way by its name; `place` is where autockpt has tensors wait."""
    return {
        "torch.utils.checkpoint, each block": functools.partial(uniform, length=1),
        "FairScale, each block": functools.partial(fairscale, moves=False),
        "FairScale, each block, offload_to_cpu": functools.partial(fairscale, moves=True),
        "torch.autograd.graph.save_on_cpu": save_on_cpu,
        "autockpt, min": functools.partial(planned, offload=None),
        f"autockpt, min, offload to {'the host' if place == 'host' else 'a folder'}": functools.partial(
            planned, offload=place
        ),
    }


def on_cpu(name: str) -> list[dict[str, Any]]:
    """Peak, time and exactness of whole steps of a model, and autockpt once more at the peak of FairScale."""
    rows = []
    for said, way in ways(str(FOLDER)).items():
        rows.append(_row(name, said, way))
    peak = next(row["activation_bytes"] for row in rows if row["setting"].endswith("offload_to_cpu"))
    same = functools.partial(planned, offload=str(FOLDER), at=lambda: peak)
    return [*rows, _row(name, "autockpt, FairScale's peak, offload to a folder", same)]


def _row(name: str, said: str, way: Callable[[Case], AbstractContextManager[Applied]]) -> dict[str, Any]:
    bench = prepare(name, "small", quick=False)
    row = run_method(bench, Method(family="", setting=said, apply=way))
    print(name, said, row.get("error", ""), flush=True)
    return row | {"plain_bytes": bench.peak.activation_bytes}


def on_fake(name: str) -> list[dict[str, Any]]:
    """Peaks of whole steps of a model on the fake device, by its allocator's own counter."""
    rows: list[dict[str, Any]] = []
    for said, way in {"plain": plain, **ways("host")}.items():
        case = build(name)
        case = Case(case.model.cuda(), {key: value.cuda() for key, value in case.kwargs.items()})
        try:
            with way(case) as applied:
                peaks = [_device_peak(applied.case) for _ in range(3)]
            rows.append({"setting": said, "bytes": peaks[-1]})
        except Exception as error:  # whatever a peer dies of is a result
            rows.append({"setting": said, "error": str(error).partition("\n")[0]})
        print(name, rows[-1], flush=True)
    return rows


@contextmanager
def plain(case: Case) -> Iterator[Applied]:
    yield Applied(case=case)


def _device_peak(case: Case) -> int:
    """Return what a step adds at its peak to what stands on the device."""
    case.model.zero_grad()
    gc.collect()
    stands = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    outputs, loss = case.forward()
    loss.backward()
    del outputs, loss
    case.model.zero_grad()
    return torch.cuda.max_memory_allocated() - stands


def cpu_table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Lay out the rows of the CPU."""
    heads = ["model", "way", "peak", "of plain", "time", "gradients", "buffers"]
    return table(heads, [_cells(name, row) for name, each in rows.items() for row in each])


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [name, row["setting"], row["error"], *[""] * 4]
    return [
        name,
        row["setting"],
        f"{row['activation_bytes'] / MIB:.1f} MiB",
        f"{row['activation_bytes'] / row['plain_bytes']:.0%}",
        f"{row['time']['ratio'] - 1:+.1%}",
        row["gradients"],
        row["buffers"],
    ]


def fake_table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Lay out the peaks of the fake device."""
    lines = [
        [name, row["setting"], row.get("error") or f"{row['bytes'] / MIB:.1f} MiB"]
        for name, each in rows.items()
        for row in each
    ]
    return table(["model", "way", "peak on the fake device"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--fake", action="store_true", help="peaks on the fake CUDA device")
    given = parser.parse_args()
    if not given.fake:
        with_steady_allocator()
    torch.set_num_threads(1)
    part, run = ("fake", on_fake) if given.fake else ("cpu", on_cpu)
    for name in given.models:
        file = HERE / f"{part}.json"
        raw = json.loads(file.read_text()) if file.exists() else {"rows": {}}
        raw["rows"][name] = run(name)
        raw["environment"] = environment()
        file.write_text(json.dumps(raw, indent=1) + "\n")
        write_parts(HERE, {"cpu": cpu_table, "fake": fake_table})


if __name__ == "__main__":
    main()
