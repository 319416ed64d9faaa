"""The command ``autockpt``. Imports no verb before it is asked for, and no torch until one runs a model.

Arguments come in, a page or a JSON document and an exit status go out. Open `verb.py` first, then `solve.py`.
"""

from __future__ import annotations

import click

from .. import __version__
from .group import Verbs

COMPLETION = """Shells complete verbs, options, solvers and devices after

\b
  eval "$(_AUTOCKPT_COMPLETE=bash_source autockpt)"

or zsh_source, or _AUTOCKPT_COMPLETE=fish_source autockpt | source.
"""


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=COMPLETION,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Train PyTorch models inside a memory budget.

    Record what a model keeps for backward, choose what to recompute, and see why.

    Exit status: 0 done; 1 no plan meets what was asked, a check failed, the model cannot be recorded or planned,
    something is not installed, or the reader of the output has gone; 2 usage, which is also a target that cannot be
    imported or called and a file that cannot be read or is not valid; 130 interrupted.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(2)
