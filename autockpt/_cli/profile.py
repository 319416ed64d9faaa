"""``autockpt profile``: record a model's training step."""

from __future__ import annotations

from typing import Literal

import click

from .._data.rooflines import ROOFLINES
from . import options
from .source import record
from .verb import Result, verb, write


@verb(
    "autockpt profile train.py:build -o profile.json",
    "autockpt profile train.py:build --mode fake --device t4",
)
@options.target
@click.option(
    "--mode",
    type=click.Choice(["measured", "fake"]),
    default="measured",
    show_default=True,
    help="measured: run a step, whose activations wait elsewhere. fake: run nothing.",
)
@click.option(
    "--device",
    type=click.Choice(sorted(ROOFLINES)),
    metavar="NAME",
    help="With --mode fake: the device whose seconds to predict: h100.",
)
@click.option(
    "--outputs-freed",
    is_flag=True,
    help="The training loop keeps the loss alone, and lets go of the model's outputs before backward.",
)
@options.optimizer
@options.output
def profile(
    target: str,
    mode: Literal["measured", "fake"],
    device: str | None,
    outputs_freed: bool,
    optimizer: str | None,
    output: str | None,
) -> Result:
    """Record what one training step of a model holds, when, and what each call costs.

    TARGET is package.module:function or file.py:function. It takes no arguments and returns (model, inputs),
    (model, inputs, loss) or (model, inputs, loss, optimizer). A tuple of inputs is passed by position, a mapping by
    keyword. Without a loss, one that takes three copies of the outputs is reserved for; --optimizer goes before the
    function's own. Prints where memory and time go.
    """
    if device is not None and mode != "fake":
        raise click.UsageError("--device goes with --mode fake: a measured step times the device that it runs on")
    recorded = record(target, mode=mode, device=device, optimizer=optimizer, holds_outputs=not outputs_freed)
    write(output, recorded.save)
    return Result(recorded, recorded._page().text)
