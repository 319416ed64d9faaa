"""How each recorded profile is made: models on the meta device, batches without values, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import torch

from autockpt import Profile, profile
from autockpt._data.step.tables import Recipe
from benchmarks.shipped.models import MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What one recording needs, besides the model.

    Attributes:
        batch: what a step trains on, in words.
        precision: ``bf16`` parameters, or ``bf16 autocast`` over parameters in single precision.
        device: whose roofline gives the seconds.
        optimizer: builds it over the parameters.
        notes: what is not as in a training run on that device.
    """

    batch: str
    precision: Literal["bf16", "bf16 autocast"]
    device: str
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW
    notes: tuple[str, ...] = ()


def record(name: str) -> Profile:
    """Record the profile called `name`, in fake mode.

    Args:
        name: a key of `RECIPES`.

    Returns:
        The profile, with how it was made in it.
    """
    setup = RECIPES[name]
    with torch.device("meta"):
        model, batch = MODELS[name]()
    model.train()
    autocast = setup.precision == "bf16 autocast"
    if not autocast:
        model.to(torch.bfloat16)
        batch = {name: each.bfloat16() if each.is_floating_point() else each for name, each in batch.items()}
    optimizer = setup.optimizer(model.parameters())
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        recorded = profile(model, batch, optimizer=optimizer, mode="fake", device=setup.device)
    return msgspec.structs.replace(
        recorded,
        recipe=Recipe(
            batch=setup.batch,
            precision=setup.precision,
            optimizer=type(optimizer).__name__,
            versions={package: version(package).partition("+")[0] for package in ("torch", "transformers")},
            command=f"python -m benchmarks.shipped {name}",
        ),
        notes=(*setup.notes, *recorded.notes),
    )


DROPOUT = (
    "without dropout: fake tensors pass as the CPU's, whose dropout holds masks of two bytes where those of a GPU take "
    "one, and whose attention with dropout holds the scores"
)
AUTOCAST = (
    "under the CPU's autocast: that of a GPU also normalises in single precision what comes in with 16 bits, which "
    "happens to none of the blocks of this model"
)
EAGER = "attention in plain operators, scores held: no fused kernel of the CPU takes a bias that is trained"
GROUPED = (
    "routing without dropped tokens, by sorting and grouped matrix products; the sizes of the groups do not matter"
)


def _autocast(batch: str, device: str, *notes: str) -> Setup:
    """Single precision under autocast, AdamW: how most models are trained on one GPU."""
    return Setup(batch=batch, precision="bf16 autocast", device=device, notes=(AUTOCAST, *notes))


def _pure(batch: str, device: str, *notes: str) -> Setup:
    """Parameters, gradients and AdamW's state in bfloat16: how models that would not fit otherwise are tuned."""
    return Setup(batch=batch, precision="bf16", device=device, notes=notes)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


RECIPES: Mapping[str, Setup] = MappingProxyType(
    {
        "bert-large": _autocast("64 × 512 tokens", "a100", DROPOUT),
        "gpt2-xl": _pure("8 × 1024 tokens", "rtx4090", DROPOUT),
        "llama-1b": _autocast("4 × 4096 tokens", "a100"),
        "llama-8b": _pure("1 × 8192 tokens", "h100"),
        "mixtral-small": _pure("8 × 2048 tokens", "a100", GROUPED),
        "resnet-50": replace(_autocast("256 images", "rtx4090"), optimizer=_momentum),
        "resnet-152": replace(_autocast("256 images", "rtx4090"), optimizer=_momentum),
        "sd-unet": _autocast("16 × 64×64 latents", "rtx4090"),
        "swin-base": _pure("128 images", "rtx4090", EAGER),
        "t5-large": _autocast("16 × 512+128 tokens", "a100", DROPOUT, EAGER),
        "vit-large": _autocast("128 images", "rtx4090"),
        "whisper-medium": _autocast("16 × 30 s", "a100"),
    }
)
