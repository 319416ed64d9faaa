"""``autockpt fit``: how a step is taken fastest on devices, and with how large a batch. Runs no step."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..._data.hardware.devices import DEVICES, devices_named, gpu_of
from ..._data.profile import Profile
from ...solvers.errors import AutockptError
from .. import options
from ..ranks import Among, among
from ..ranks import options as rank_options
from ..recording import NO_VALUES_IN_FIT, record_among
from ..screen import progress, working
from ..source import load
from ..target import build, calling, names_function
from ..verb import Misuse, Result, verb

if TYPE_CHECKING:
    from ..._fit.steps import Recorded


def _gpus(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str]:
    """Read devices, several in one word or in several."""
    if value and not "".join(value).replace(",", "").strip():
        raise click.BadParameter(f"{value[0]!r} names no device, such as rtx4090", ctx, param)
    try:
        return devices_named(value)
    except AutockptError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _sizes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[int]:
    """Read numbers of samples, several in one word or in several; each is returned once."""
    sizes: dict[int, None] = {}
    for word in (each.strip() for words in value for each in words.split(",")):
        digits = word.lstrip("0")[:9]  # int() refuses very long words, and nine digits are too many samples anyway
        if not word.isdecimal() or not digits or int(digits) > 10**6:
            raise click.BadParameter(f"{word!r} is no number of samples, such as 8", ctx, param)
        sizes[int(digits)] = None
    return list(sizes)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in DEVICES if name.startswith(last)]


@verb(
    "autockpt fit gpt2-xl --gpu 24GB",
    "autockpt fit gpt2-xl --gpu rtx4090,a100-80gb,h100",
    "autockpt fit train.py:build --gpu rtx4090 --samples 8,64",
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
    help=f"Devices, separated by commas: {', '.join(DEVICES)}; or an amount, as 24GB, for those that have so much; "
    "where none has, it is memory without seconds. All of them, where none is given.",
)
@click.option(
    "--samples",
    "--batch",
    "sizes",
    multiple=True,
    metavar="SAMPLES",
    callback=_sizes,
    help="Samples of one step of the optimizer, separated by commas; as recorded, where none is given.",
)
@options.optimizer
@options.offload
@options.verbose
@rank_options
def fit(
    source: str,
    gpus: list[str],
    sizes: list[int],
    optimizer: str | None,
    offload: str | None,
    verbose: bool,
    ranks: int | None,
    shard: Any,
) -> Result:
    """Say how a training step is taken fastest on devices, how fast that is, and how large a batch may be.

    A step takes its samples at once, or in equal microbatches whose gradients add up; each plain, or under a plan.

    SOURCE is a name that `autockpt profiles` lists, a file that `autockpt profile` wrote, - for stdin, or
    file.py:function. A step of the function's model is recorded without running it; torch is imported only for that.
    All figures are predicted. -v shows what the switches of other libraries would do, beside our plan. With --ranks the
    figures are those of each of so many ranks, and the batch is that of one; one process is enough to ask.
    """
    from ..._fit.fit import find_fits
    from ..._show.explain.fit import brief_fit, fit_page

    asked = among(ranks, shard)
    options.refuse_unclear(offload=offload)
    recorded: Recorded | None = None
    if names_function(source):
        recorded, profile = _recorded(source, asked, gpus, optimizer)
    else:
        if asked is not None:
            raise click.UsageError("--ranks goes with file.py:function; a profile was recorded already")
        if optimizer is not None:
            raise click.UsageError("--optimizer goes with file.py:function; a profile has counted its own")
        profile = load(source, Profile)
    if sizes and profile.samples is None:
        raise Misuse(f"{source} does not say how many samples its batch has; record it again by autockpt profile")
    with working() as tell:
        found = find_fits(profile, gpus, sizes=sizes, recorded=recorded, offload=offload, tell=tell)
    page = (fit_page if verbose else brief_fit)(found, shlex.quote(source))
    return Result(page.document, page.brief, "" if found.fits else f"nothing fits {', '.join(gpus)}")


def _recorded(source: str, asked: Among | None, gpus: list[str], optimizer: str | None) -> tuple[Recorded, Profile]:
    """Record a step without running it; return what records it at other sizes, and its profile for the first device."""
    if asked is not None:
        return _recorded_on_one_rank(source, asked, gpus, optimizer)
    made = build(source)
    from ..._check.fits import first_of, recorded_by
    from ..._record.one_rank.rank import OnRank

    recorded = recorded_by(OnRank(made.model, made.inputs, made.loss, optimizer or made.optimizer), gpus)
    what = f"a step of {type(made.model).__name__}"
    with progress(f"recording {what}, without running it"), calling(f"a step of {source}", NO_VALUES_IN_FIT):
        return recorded, first_of(recorded, gpus)


def _recorded_on_one_rank(
    source: str, asked: Among, gpus: list[str], optimizer: str | None
) -> tuple[Recorded, Profile]:
    """As `_recorded`, on one of several simulated ranks.

    The model is not kept, so only the recorded batch size is returned. For other sizes `recorded` returns None, and
    their steps are computed from the profile.
    """
    timed: list[str | None] = [gpu for gpu in gpus if gpu_of(gpu).roofline is not None] or [None]
    found = dict(zip(timed, record_among(source, asked, timed, optimizer)[1], strict=True))
    first = next(iter(found.values()))

    def recorded(gpu: str, size: int | None) -> Profile | None:
        return found.get(gpu, first) if size is None else None

    return recorded, found.get(gpus[0], first)
