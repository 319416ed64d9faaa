"""Stage 6: profiles of the shipped models, recorded on the device beside those of fake mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autockpt
from autockpt import Profile
from benchmarks.gpu.models import build
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import PLENTY, Setting, plan_within
from benchmarks.shipped.models import MODELS
from benchmarks.shipped.recipes import RECIPES

__all__ = ["roofline_of", "rows"]

ROOFLINES = ("a100", "h100", "h200", "rtx4090", "t4")
"""The devices that `autockpt.profile` knows in fake mode."""

TINY = ("gpt2-small",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is recorded twice.

    Attributes:
        build: builds model and batch on the device named.
        optimizer: builds it over the parameters.
        autocast: whether the step runs under autocast to bfloat16.
    """

    build: Callable[[torch.device], tuple[nn.Module, dict[str, torch.Tensor]]]
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW
    autocast: bool = False


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return a row for each model, in a process of its own."""
    setups: dict[str, Setup] = {}
    if setting.size == "full":
        setups = {name: _shipped(name) for name in RECIPES}
    for name in TINY if setting.size == "tiny" else ():
        setups[name] = Setup(build=partial(build, name, "tiny"))
    return [
        Job(name=f"profile {name}", run=partial(both, each, setting), process=f"profile {name}")
        for name, each in setups.items()
    ]


def both(setup: Setup, setting: Setting) -> Iterator[Figures]:
    """Record in fake mode, which says what to expect, and then on the device."""
    fake = _recorded(setup, torch.device("meta"), roofline=roofline_of(setting.device))
    yield "predicted", {**_figures(fake, setting), "roofline": fake.device}
    yield "measured", {**_figures(_recorded(setup, setting.device), setting)}


def roofline_of(device: torch.device) -> str:
    """Return the name of the roofline of a device; that of an A100 where it has none."""
    if device.type != "cuda":
        return ROOFLINES[0]
    said = torch.cuda.get_device_name(device).lower().replace(" ", "")
    return next((name for name in ROOFLINES if name in said), ROOFLINES[0])


def _recorded(setup: Setup, device: torch.device, *, roofline: str | None = None) -> Profile:
    model, batch = setup.build(device)
    optimizer = setup.optimizer(model.parameters())
    kind = "cpu" if roofline else device.type  # fake tensors pass as the CPU's
    context: AbstractContextManager[Any] = torch.autocast(kind, torch.bfloat16) if setup.autocast else nullcontext()
    with context:
        if roofline:
            return autockpt.profile(model, batch, optimizer=optimizer, mode="fake", device=roofline)
        return autockpt.profile(model, batch, optimizer=optimizer)


def _figures(profile: Profile, setting: Setting) -> dict[str, Any]:
    plain = autockpt.solve(profile, PLENTY)
    static_bytes = profile.static.total_bytes
    some, _ = plan_within(profile, static_bytes + int(0.6 * (plain.peak_bytes - static_bytes)), setting)
    return {
        "static_bytes": static_bytes,
        "plain_peak_bytes": plain.peak_bytes,
        "added_bytes": plain.peak_bytes - static_bytes,
        "plain_seconds": profile.plain_seconds,
        "overhead at 60 %": some.recompute_overhead,
        "calls": len(profile.calls),
        "operators": len(profile.ops.call),
    }


def _shipped(name: str) -> Setup:
    """Make the setup of a shipped profile, with values in the batch where it is built for a device."""
    recipe = RECIPES[name]

    def build_on(device: torch.device) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        with device:
            model, batch = MODELS[name]()
            if device.type != "meta":
                batch = {key: _filled(value) for key, value in batch.items()}
        if recipe.precision == "bf16":
            model = model.to(torch.bfloat16)
            batch = {key: each.bfloat16() if each.is_floating_point() else each for key, each in batch.items()}
        return model.train(), batch

    return Setup(build=build_on, optimizer=recipe.optimizer, autocast=recipe.precision == "bf16 autocast")


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape)
    return torch.randint(1000, tensor.shape)  # fewer than any vocabulary, as many as there are classes
