"""``autockpt fit``: which devices hold a step, how much slower, and with how large a batch. Runs no step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from .._data.devices import DEVICES, UnknownDevice, named, of_memory
from .._data.profile import Profile
from . import options
from .ranks import Among, among
from .ranks import options as rank_options
from .recording import record_among, record_for
from .screen import working
from .source import load
from .target import Target, build, names_function
from .verb import Misuse, Result, verb


def _gpus(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str]:
    """Read devices, several in one word or in several."""
    names = [each for word in value for each in word.split(",") if each.strip()]
    if value and not names:
        raise click.BadParameter(f"{value[0]!r} names no device, such as rtx4090", ctx, param)
    try:
        return list(dict.fromkeys(each for name in names for each in of_memory(name) or [named(name)]))
    except UnknownDevice as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _sizes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[int]:
    """Read numbers of samples, several in one word or in several."""
    words = [each.strip() for word in value for each in word.split(",")]
    for word in words:
        digits = word.lstrip("0")[:9]  # more would be too many to read, and are too many samples
        if not word.isdecimal() or not digits or int(digits) > 10**6:
            raise click.BadParameter(f"{word!r} is no number of samples, such as 8", ctx, param)
    return list(dict.fromkeys(map(int, words)))


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in DEVICES if name.startswith(last)]


@verb(
    "autockpt fit gpt2-xl --gpu 24GB",
    "autockpt fit gpt2-xl --gpu rtx4090,a100-80gb,h100",
    "autockpt fit train.py:build --gpu rtx4090 --batch 4,8",
    "autockpt fit train.py:build --gpu 24GB --ranks 8",
)
@options.source
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="NAMES",
    callback=_gpus,
    shell_complete=_complete,
    help=f"Devices, separated by commas: {', '.join(DEVICES)}; or an amount, as 24GB, for those that have so much. "
    "All of them, where none is given.",
)
@click.option(
    "--batch",
    "sizes",
    multiple=True,
    metavar="SAMPLES",
    callback=_sizes,
    help="Samples in a batch, separated by commas; as recorded, where none is given.",
)
@options.optimizer
@options.offload
@rank_options
def fit(
    source: str,
    gpus: list[str],
    sizes: list[int],
    optimizer: str | None,
    offload: str | None,
    ranks: int | None,
    shard: Any,
) -> Result:
    """Say which devices hold a training step, how much slower it is there, and how large a batch may be.

    SOURCE is a name that `autockpt profiles` lists, a file that `autockpt profile` wrote, - for stdin, or
    file.py:function. A step of the function's model is recorded without running it; torch is imported only for that.
    All figures are predicted. What the switches of other libraries would do is shown beside our plan. With --ranks the
    figures are those of each of so many ranks, and the batch is that of one; one process is enough to ask.
    """
    from .._fit.fit import fit as find
    from .._fit.sized import samples_of
    from .._show.explain.fit import fit_page

    gpus = gpus or list(DEVICES)
    timed: Callable[[str], Profile] | None = None
    asked = among(ranks, shard)
    if names_function(source):
        samples, recorded = _recorded(source, asked, gpus, optimizer)
        timed, profile = recorded.__getitem__, recorded[gpus[0]]
    else:
        if asked is not None:
            raise click.UsageError("--ranks goes with file.py:function; a profile was recorded already")
        if optimizer is not None:
            raise click.UsageError("--optimizer goes with file.py:function; a profile has counted its own")
        profile = load(source, Profile)
        samples = samples_of(profile)
    if sizes and samples is None:
        raise Misuse(f"{source} does not say how many samples its batch has; --batch goes with file.py:function")
    with working() as tell:
        found = find(profile, gpus, samples=samples, sizes=sizes, timed=timed, offload=offload, tell=tell)
    page = fit_page(found, source)
    return Result(page.document, page.brief)


def _recorded(
    source: str, asked: Among | None, gpus: list[str], optimizer: str | None
) -> tuple[int | None, dict[str, Profile]]:
    """Record a step without running it; return its number of samples, and its profile with each device's seconds."""
    if asked is not None:
        made, found = record_among(source, asked, gpus, optimizer)
        return _samples(made), dict(zip(gpus, found, strict=True))
    made = build(source)
    return _samples(made), record_for(source, made, gpus, optimizer=optimizer)


def _samples(made: Target) -> int | None:
    """Return the first dimension of the first tensor of a batch; None if it has no tensor with dimensions."""
    from .._record.step import training_step

    return next((each.shape[0] for each in training_step(made.model, made.inputs, None).inputs() if each.dim()), None)
