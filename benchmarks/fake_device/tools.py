"""The functions beside `apply`, and the command, on a device: what they find against the allocator's own counter."""

from __future__ import annotations

import gc
import json
import logging
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from click.testing import CliRunner

import autockpt
from benchmarks.fake_device.rows import as_before
from benchmarks.models import TINY
from tests.device import models
from tests.device.twin import Batch, Run, adamw, foretold, loss_of, outcome, plain_and_planned, plainly
from tests.doors import cli_main, torch_private
from tests.fake_cuda.device import TOTAL_BYTES, Options, call, set_options, take_peak

__all__ = ["TOOLS", "measure_tool"]

SHARE = 0.6
OPTIMIZER = "adamw"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a tool showed.

    Args:
        holds: each thing that must be so, and whether it is.
        foretold: predicted over measured peaks.
        notes: what else is worth a word.
        error: what was raised.
    """

    holds: dict[str, bool]
    foretold: dict[str, float]
    notes: str = ""
    error: str = ""


def measure_tool(model: str, tool: str, workspace_bytes: int) -> dict[str, object]:
    """Try one tool on one model."""
    set_options(Options(workspace_bytes=workspace_bytes))
    torch_private.forget_workspaces()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return asdict(TOOLS[tool][0](model))
    except Exception as error:
        traceback.print_exc()
        return asdict(Found(holds={}, foretold={}, error=f"{type(error).__name__}: {error}"))
    finally:
        as_before()


def profiled(name: str) -> Found:
    """`profile` before the first step, against plain steps; and `measure` of one of those."""
    base_bytes = torch.cuda.memory_allocated()
    model, batch = models.build(name)
    profile = autockpt.profile(model, batch, loss=loss_of, optimizer=OPTIMIZER)
    run = Run(model, batch, adamw(model), base_bytes)
    torch_private.forget_workspaces()
    plainly(run, 3)
    take_peak()
    measured = autockpt.measure(partial(_step, run))
    return Found(
        holds={"measure agrees with the counter": take_peak() == measured.peak_bytes},
        foretold={"plain": profile.plain_peak_bytes / run.peaks[-1]},
    )


def _step(run: Run) -> None:
    outputs = run.model(**run.batch)
    loss_of(outputs).backward()
    assert run.optimizer is not None
    run.optimizer.step()


def frontier_of(name: str) -> Found:
    """Every plan of a frontier, trained for some steps."""
    profile = autockpt.profile(*models.build(name), loss=loss_of, optimizer=OPTIMIZER)
    found = autockpt.frontier(profile, points=4)
    holds, ratios = {"more than one plan": len(found.plans) > 1}, {}
    for number, plan in enumerate(found.plans[1:], 1):
        trained = plain_and_planned(partial(models.build, name), partial(plainly, steps=3), apply=partial(_apply, plan))
        holds[f"plan {number} bit for bit"] = all(outcome(trained))
        ratio = foretold(trained)
        assert ratio is not None
        ratios[f"plan {number}"] = ratio
        autockpt.remove(trained.planned.model)
    return Found(holds=holds, foretold=ratios)


def _apply(plan: autockpt.Plan, run: Run, _: int) -> None:
    autockpt.apply(run.model, plan=plan)


def verified(name: str) -> Found:
    """`verify` of the plan for a budget."""
    model, batch = models.build(name)
    profile = autockpt.profile(model, batch, loss=loss_of)
    standing = profile.static.total_bytes
    budget_bytes = int(standing + SHARE * (profile.plain_peak_bytes - standing))
    found = autockpt.verify(model, batch, loss=loss_of, budget=budget_bytes)
    ratios = {}
    if found.predicted_peak_bytes and found.measured_peak_bytes:
        ratios["planned"] = found.predicted_peak_bytes / found.measured_peak_bytes
    if found.predicted_plain_peak_bytes and found.measured_plain_peak_bytes:
        ratios["plain"] = found.predicted_plain_peak_bytes / found.measured_plain_peak_bytes
    within = found.measured_peak_bytes is not None and found.measured_peak_bytes <= budget_bytes
    return Found(holds={"exact": found.verdict == "exact", "measured within budget": within}, foretold=ratios)


def largest_batch(name: str) -> Found:
    """`max_batch`, and a training run with what it found."""
    model, batch = models.build(name)

    def sized(samples: int) -> dict[str, torch.Tensor]:
        return {key: torch.cat([value[:1]] * samples) for key, value in batch.items()}

    profile = autockpt.profile(model, batch, loss=loss_of, optimizer=OPTIMIZER)
    budget_bytes = profile.plain_peak_bytes
    found = autockpt.max_batch(model, sized, budget_bytes, loss=loss_of, optimizer=OPTIMIZER)
    assert found.plan.peak_bytes is not None
    trained = plain_and_planned(
        lambda: (models.build(name)[0], sized(found.batch_size)),
        partial(plainly, steps=3),
        apply=partial(_apply, found.plan),
    )
    ratio = foretold(trained)
    assert ratio is not None
    autockpt.remove(trained.planned.model)
    return Found(
        holds={
            "within budget": max(trained.planned.peaks) <= budget_bytes,
            "more than plain": found.batch_size > found.plain_batch_size,
            "bit for bit": all(outcome(trained)),
        },
        foretold={f"{found.batch_size} samples": ratio},
    )


MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


def capped(name: str) -> Found:
    """The lowest caps, over the budget and over the plain peak, under which the planned and the plain step train.

    The allocator's segments are a sixty-fourth of a GPU's, so that a toy lies in them as a large model does.
    """
    call("set_mib", 1 << 14)
    build = partial(models.build, name)
    found = plain_and_planned(build)
    autockpt.remove(found.planned.model)
    found.planned.model, found.planned.optimizer, found.planned.batch = torch.nn.Identity(), None, {}
    planned = _least_margin(build, found.budget_bytes, lambda model: autockpt.apply(model, budget=found.budget_bytes))
    plain = _least_margin(build, max(found.plain.peaks[1:]), lambda model: model)
    return Found(
        holds={"trains within 10 % above the budget": planned <= MARGINS[2]},
        foretold={},
        notes=f"planned: budget + {100 * planned:.0f} %; plain: its peak + {100 * plain:.0f} %",
    )


def _least_margin(
    build: Callable[[], tuple[torch.nn.Module, Batch]], size_bytes: int, prepare: Callable[[torch.nn.Module], object]
) -> float:
    for margin in MARGINS:
        gc.collect()
        torch_private.forget_workspaces()
        torch.cuda.empty_cache()
        base_bytes = torch.cuda.memory_allocated()
        torch.cuda.set_per_process_memory_fraction((base_bytes + (1 + margin) * size_bytes) / TOTAL_BYTES)
        try:
            model, batch = build()
            prepare(model)
            plainly(Run(model, batch, adamw(model), base_bytes), 5)
        except torch.OutOfMemoryError:
            continue
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return margin
    return float("inf")


TARGET = """
from tests.device import models
from tests.device.twin import loss_of

def build():
    return *models.build({name!r}), loss_of, "adamw"
"""


def command(name: str) -> Found:
    """`autockpt doctor`, `profile`, `solve`, `frontier`, `explain`, `verify`, in this process."""
    with TemporaryDirectory() as folder:
        file, profile, plan = (Path(folder) / each for each in ("target.py", "profile.json", "plan.json"))
        file.write_text(TARGET.format(name=name))
        target = f"{file}:build"
        verbs: dict[str, list[object]] = {
            "doctor": ["doctor"],
            "profile": ["profile", target, "-o", profile],
            "solve": ["solve", profile, "--budget", "min", "-o", plan],
            "frontier": ["frontier", profile, "--points", 3],
            "explain": ["explain", plan, "--profile", profile],
            "verify": ["verify", target, "--plan", plan],
            "verify --budget": ["verify", target, "--budget", "min"],
        }
        holds = {verb: _ran(arguments) for verb, arguments in verbs.items()}
        seen = json.loads(CliRunner().invoke(cli_main, ["doctor", "--json"]).stdout)["tried"]
    holds["doctor sees allocations of the device"] = any(
        each["device"].startswith("cuda") and each.get("seen_bytes") for each in seen
    )
    return Found(holds=holds, foretold={})


def _ran(arguments: list[object]) -> bool:
    """Whether the command ends with 0; what it said else is logged."""
    result = CliRunner().invoke(cli_main, [str(each) for each in arguments], prog_name="autockpt")
    if result.exit_code:
        logging.getLogger(__name__).error("autockpt %s: %s %s", arguments, result.output, result.exception)
    return result.exit_code == 0


TOOLS: dict[str, tuple[Callable[[str], Found], tuple[str, ...]]] = {
    "profile, measure": (profiled, tuple(TINY)),
    "verify": (verified, tuple(TINY)),
    "frontier": (frontier_of, ("gpt2", "resnet")),
    "max_batch": (largest_batch, ("gpt2",)),
    "lowest cap": (capped, ("gpt2", "llama")),
    "command": (command, ("gpt2", "resnet")),
}
"""What is tried, and on which models."""
