"""``python -m benchmarks.shipped NAME … | --all``: record the profiles of real models again."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Record all of them.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, exists=True, writable=True, path_type=Path),
    default=Path(),
    help="Folder to write NAME.json.gz to; by default this one.",
)
def main(names: tuple[str, ...], everything: bool, output: Path) -> None:
    """Record profiles of real models again, by NAME. Takes seconds each, no GPU and no downloads."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # before it is imported
    try:
        _record(names, everything, output)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"recording needs {error.name}: pip install torch transformers") from None


def _record(names: tuple[str, ...], everything: bool, output: Path) -> None:
    from benchmarks.shipped.recipes import RECIPES, record

    wanted = tuple(RECIPES) if everything else names
    if not wanted or any(name not in RECIPES for name in wanted):
        raise click.UsageError(f"give --all, or names among {', '.join(RECIPES)}")
    for name in wanted:
        path = output / f"{name}.json.gz"
        record(name).save(path)
        click.echo(f"wrote {path}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.shipped")
