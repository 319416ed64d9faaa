"""``autockpt profile``: record a model's training step."""

from __future__ import annotations

from typing import Literal

import click

from .._show.explain import explain_profile
from .common import (
    errors,
    examples,
    json_option,
    optimizer_option,
    output_option,
    print_json,
    require_torch,
    write,
)
from .screen import progress, show, width
from .target import build, running
from .types import DeviceName, TargetName


@click.command(
    epilog=examples(
        "autockpt profile train.py:build -o profile.json",
        "autockpt profile train.py:build --mode fake --device t4",
    ),
)
@click.argument("target", type=TargetName(), metavar="TARGET")
@click.option(
    "--mode",
    type=click.Choice(["measured", "fake"]),
    default="measured",
    show_default=True,
    help="measured: run a step, whose activations wait elsewhere. fake: run nothing.",
)
@click.option(
    "--device", type=DeviceName(), metavar="NAME", help="With --mode fake: the device whose seconds to predict: h100."
)
@optimizer_option
@output_option
@json_option
def profile(
    target: str,
    mode: Literal["measured", "fake"],
    device: str | None,
    optimizer: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Record what one training step of a model holds, when, and what each call costs.

    TARGET is package.module:function or file.py:function. It takes no arguments and returns (model, inputs),
    (model, inputs, loss) or (model, inputs, loss, optimizer). A tuple of inputs is passed by position, a mapping by
    keyword. Without a loss, one that takes three copies of the outputs is reserved for; --optimizer goes before the
    function's own. Prints where memory and time go.
    """
    if device is not None and mode != "fake":
        raise click.UsageError("--device goes with --mode fake: a measured step times the device that it runs on")
    with errors(as_json=as_json):
        require_torch()
        from .._record import profile as record

        with progress(f"importing {target}"):
            made = build(target)
        with progress(f"recording a step of {type(made.model).__name__}"), running(target):
            recorded = record(
                made.model, made.inputs, loss=made.loss, optimizer=optimizer or made.optimizer, mode=mode, device=device
            )
        write(recorded, output)
    if as_json:
        print_json(recorded)
    else:
        show(explain_profile(recorded, width=width()))
