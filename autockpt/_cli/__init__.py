"""The command ``autockpt``. Imports no verb before it is asked for, and no torch until one runs a model.

Arguments come in, a page or a JSON document and an exit status go out. Open `verb.py` first, then `verbs/`.

group.py      imports a verb when it is asked for, and turns an error into one line and an exit status
options.py    options that several verbs share
source.py     reads what a verb is given: a profile, a file, stdin or a function
target.py     what a user's function makes: a model, its batch, a loss, an optimizer
recording.py  how a step is recorded if a verb is given a function
ranks.py      planning for one rank of several that are not there
solving.py    the option that names a solver
screen.py     pages, messages and progress, as wide as the terminal

verbs/   the commands, a file each
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
    something is not installed, or the reader of the output has gone; 2 wrong usage, a target that cannot be imported
    or called, a file that cannot be read or is not valid, or pins that match nothing or cannot be honoured; 130
    interrupted.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(2)
