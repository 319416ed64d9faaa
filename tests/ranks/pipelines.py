"""What two stages of a pipeline do, plain and under a budget each; see `works`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import autockpt
from tests.doors import governor_of

from .models import WORDS, Block, Shared, bits, standing_bytes, tokens, told

STEPS = 6
SCHEDULES: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zero bubble v": pipelining.ScheduleZBVZeroBubble,
    "dual pipe v": pipelining.ScheduleDualPipeV,
}
PLACES = {
    **dict.fromkeys(("gpipe", "1f1b"), ((0,), (1,))),
    **dict.fromkeys(("interleaved", "zero bubble"), ((0, 2), (1, 3))),
    **dict.fromkeys(("zero bubble v", "dual pipe v"), ((0, 3), (1, 2))),
}
"""Which stages each rank has. Where they lie as a V does, the first and the last are on one."""


class Stage(nn.Module):
    """Half of a small language model, or a smaller part of it."""

    def __init__(self, number: int, stages: int = 2, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        torch.manual_seed(10 + number)
        self.words = nn.Embedding(WORDS, width) if number == 0 else None
        self.blocks = nn.ModuleList(Block(width, 4, 0.1) for _ in range(depth))
        self.head = nn.Linear(width, WORDS) if number == stages - 1 else None

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        hidden = given if self.words is None else self.words(given)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden if self.head is None else self.head(hidden)


def _loss(logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), batch[:, 1:].reshape(-1))


class Parts(nn.Module):
    """What one rank has of a pipeline, one stage or several; `wrapped` as what a schedule runs."""

    def __init__(self, rank: int, schedule: str, **sizes: int) -> None:
        super().__init__()
        self._numbers, self._schedule = PLACES[schedule][rank], schedule
        self._every = 2 * len(self._numbers)
        self.stages = nn.ModuleList(Stage(number, self._every, **sizes) for number in self._numbers)

    @property
    def asked(self) -> Any:
        """What `apply` is given."""
        return [*self.stages] if len(self.stages) > 1 else self.stages[0]

    def wrapped(self, parts: int, group: Any = None) -> tuple[list[Any], Any]:
        """Return the stages, and a schedule of so many microbatches."""
        device = torch.device("cpu")
        pairs = zip(self.stages, self._numbers, strict=True)
        stages = [pipelining.PipelineStage(each, number, self._every, device, group=group) for each, number in pairs]
        given = stages if len(stages) > 1 else stages[0]
        return stages, SCHEDULES[self._schedule](given, parts, loss_fn=_loss)

    def given(self, batch: torch.Tensor, losses: list[torch.Tensor] | None = None) -> tuple[Any, Any]:
        """Return the arguments, by place and by name, of this rank for a step of the schedule."""
        last = self._every - 1 in self._numbers
        return ((batch,) if 0 in self._numbers else ()), ({"target": batch, "losses": losses} if last else {})


Watch = Callable[[int, Parts], None]


def stood_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, stages: Sequence[Any]) -> int:
    """Return what stands as a step of a rank's stages begins, once they are as the schedule has them then."""
    arriving = [each for stage in stages for each in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())]
    buffers = (getattr(info, "buffer", None) for infos in arriving for info in infos)
    given = [each for each in buffers if each is not None]
    # What the last stage has made stands until the next step begins, and goes before its first forward.
    made = [each for stage in stages for each in stage.output_chunks]
    return standing_bytes(model, optimizer, [*given, *made])


def trained(
    place: tuple[int, int],
    schedule: str,
    parts: int,
    budget: int | None,
    mesh: Any = None,
    evaluates: Sequence[int] = (),
    watch: Watch | None = None,
    **pins: Any,
) -> Any:
    """Train a rank's stages; return what each step made, where it stood and how high it went, and its plans.

    Args:
        place: which rank of the pipeline it is, and which of those that have its stages.
        schedule: of `SCHEDULES`.
        parts: microbatches in a step.
        budget: of this rank; None for the plain training.
        mesh: of pipelines and of the ranks that share each stage by FSDP2; None where a stage is on one rank.
        evaluates: the steps after which the pipeline evaluates a batch.
        watch: told of each step that begins, with its number and the stages.
        pins: for `apply`.
    """
    rank, copy = place
    model = Parts(rank, schedule)
    if budget is not None:
        autockpt.apply(model.asked, budget, **pins)
    for each in model.stages if mesh is not None else ():
        Shared(by="fsdp").in_units(each, mesh["shards"], [])
    stages, runs = model.wrapped(parts, None if mesh is None else mesh["stages"].get_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    said: list[Any] = []
    starts: list[int] = []
    peaks: list[int] = []

    def step(number: int) -> None:
        batch = tokens(copy, number, rows=16)
        torch.manual_seed(100 + number)
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        args, named = model.given(batch, losses)
        runs.step(*args, **named)
        said.append([*map(bits, losses), told({name: each.grad for name, each in model.named_parameters()})])
        optimizer.step()

    for number in range(STEPS):
        for stage in stages if number > 1 else ():
            # As the schedule's step begins with. `measure` sees only a part of the graphs that go there.
            stage.clear_runtime_states()
        gc.collect()
        starts.append(stood_bytes(model, optimizer, stages))
        if watch is not None:
            watch(number, model)
        found = autockpt.measure(lambda: step(number))  # noqa: B023
        peaks.append(starts[-1] + found.step_bytes)
        if number in evaluates:
            losses: list[torch.Tensor] = []
            args, named = model.eval().given(tokens(copy, number, rows=16), losses)
            with torch.no_grad():
                runs.eval(*args, **named)
            said.append([*map(bits, losses)])
            model.train()
    governor: Any = governor_of(model.stages[0])
    return said, starts, peaks, [] if governor is None else [made.plan for made in governor.account.plans]


def kept(
    rank: int,
    *,
    schedule: str,
    parts: int,
    share: float,
    sharded: bool = False,
    evaluates: Sequence[int] = (),
    **pins: Any,
) -> dict[str, Any]:
    """Train plainly and under a budget that leaves a share of what the plain step adds.

    Args:
        rank: this one, of two; of four where each stage is sharded by FSDP2.
        schedule, parts, evaluates, pins: as `trained` has them.
        share: of what the plain step adds.
        sharded: whether two ranks share each stage.
    """
    gc.freeze()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "shards")) if sharded else None
    place = divmod(rank, 2) if sharded else (rank, 0)
    plain, starts, peaks, _ = trained(place, schedule, parts, None, mesh, evaluates)
    budget = int(starts[-1] + share * (peaks[-1] - starts[-1]))
    told, _, held, plans = trained(place, schedule, parts, budget, mesh, evaluates, **pins)
    return {
        "same": told == plain,
        "budget": budget,
        "plain": peaks,
        "held": held,
        "predicted": [(each.peak_bytes, each.plain_peak_bytes, len(each.segments)) for each in plans],
        "overhead": plans[-1].recompute_overhead,
        "microbatches": _microbatches(plans[-1]),
    }


def _microbatches(plan: autockpt.Plan) -> list[int]:
    """The microbatches of which a plan recomputes anything: a stage calls each of its modules once for each."""
    keys = (key.partition("/")[0] for segment in plan.segments for key in segment.calls)
    return sorted({int(key.rpartition("#")[2]) for key in keys})


def _shared_stage(late: bool, share: float, plain: tuple[int, int] | None) -> Any:
    """Train one of two stages that two ranks share; return what each step made, what the last one added, its plan."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "copies"))
    number, copy = mesh["stages"].get_local_rank(), mesh["copies"].get_local_rank()
    model: nn.Module = Stage(number)
    starts, added = plain or (0, 0)
    budget = int(starts + share * added)
    if plain and not late:
        autockpt.apply(model, budget)
    whole: nn.Module = DistributedDataParallel(model, process_group=mesh["copies"].get_group())
    if plain and late:
        autockpt.apply(whole, budget)
    stage = pipelining.PipelineStage(whole, number, 2, torch.device("cpu"), group=mesh["stages"].get_group())
    runs = pipelining.Schedule1F1B(stage, 4, loss_fn=_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    said: list[Any] = []

    def step(number: int) -> None:
        batch = tokens(copy, number, rows=16)
        torch.manual_seed(100 + number)
        optimizer.zero_grad()
        given: dict[str, Any] = {"target": batch} if stage.is_last else {}
        runs.step(*(() if stage.is_last else (batch,)), **given)
        said.append(told({name: each.grad for name, each in model.named_parameters()}))
        optimizer.step()

    for each in range(STEPS - 1):
        step(each)
    stage.clear_runtime_states()
    gc.collect()
    stood = stood_bytes(whole, optimizer, [stage])
    found = autockpt.measure(lambda: step(STEPS - 1))
    return said, stood, found.step_bytes, autockpt.plan_of(whole if late else model)


def shared(rank: int, *, late: bool, share: float) -> dict[str, Any]:
    """Train stages that ranks share by DistributedDataParallel, plainly and under a budget for each stage."""
    gc.freeze()
    told, stood, added, _ = _shared_stage(late, share, None)
    same, _, held, plan = _shared_stage(late, share, (stood, added))
    assert plan is not None
    return {
        "same": told == same,
        "held": held,
        "most": int(share * added),
        "saved": added - held,
        "foretold": plan.plain_peak_bytes - plan.peak_bytes,
        "segments": len(plan.segments),
    }


def one_infeasible(rank: int, *, schedule: str) -> dict[str, Any]:
    """Give one rank alone a budget that no plan holds it to; both train on plainly after that."""
    model = Parts(rank, schedule)
    autockpt.apply(model.asked, [10**9, 2_500_000 * len(model.stages)][rank])
    _, runs = model.wrapped(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    errors: list[tuple[int, str, str]] = []
    for number in range(5):
        optimizer.zero_grad()
        args, named = model.given(tokens(0, number, rows=16))
        runs.step(*args, **named)
        try:
            optimizer.step()
        except autockpt.Infeasible as error:
            errors.append((number, type(error).__name__, str(error)))
    return {"errors": errors, "planned": autockpt.plan_of(model.asked) is not None}


def lowest(rank: int, *, schedule: str) -> dict[str, Any]:
    """Ask on the second rank for less than what its stages hold at rest, for the lowest that is said, and for less."""
    errors: list[tuple[int, bool]] = []
    least, held = 2_000_000, [0]
    for less in (0, 0, 1):
        try:
            _, _, held, _ = trained((rank, 0), schedule, 4, least - less if rank else 10**9)
        except autockpt.Infeasible as error:
            least = error.minimum_bytes
            errors.append((least, "rank 1 says so" in str(error)))
    return {"errors": errors, "held": max(held)}
