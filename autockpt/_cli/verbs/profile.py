"""``autockpt profile``: record a model's training step."""

from __future__ import annotations

from dataclasses import replace

import click

from .. import options
from ..recording import HowRecorded, record, recording
from ..verb import Result, verb, write


@verb(
    "autockpt profile train.py:build -o profile.json",
    "autockpt profile train.py:build --mode fake --device t4",
)
@options.target
@recording("measured")
@click.option(
    "--outputs-freed",
    is_flag=True,
    help="The training loop keeps the loss alone, and lets go of the model's outputs before backward.",
)
@options.output
@options.verbose
def profile(target: str, outputs_freed: bool, output: str | None, verbose: bool, how: HowRecorded) -> Result:
    """Record what one training step of a model holds, when, and what each call costs.

    TARGET is package.module:function or file.py:function. It takes no arguments and returns (model, inputs),
    (model, inputs, loss) or (model, inputs, loss, optimizer). A tuple of inputs is passed by position, a mapping by
    keyword. Without a loss, memory is reserved for one that takes three copies of the outputs. --optimizer is used
    instead of the function's own. Prints where memory goes in a few lines; -v shows it call by call, with the time.
    """
    from ..._show.explain.brief import brief_profile  # imports numpy, which --help does not need

    recorded = record(target, replace(how, holds_outputs=not outputs_freed))
    write(output, recorded.save)
    if verbose:
        return Result(recorded, recorded._page().text)
    then = options.command("profile", target, output="profile.json", **how.asked())
    if output is not None:
        then = options.command("frontier", output)
    return Result(recorded, brief_profile(recorded, then=then).brief)
