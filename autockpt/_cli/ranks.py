"""Planning for one rank of several that are not there: the options of verbs, and the world in which a build runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from .target import Target, calling, require_torch

if TYPE_CHECKING:
    from .._data.profile import Profile
    from .._record.optimizers.memory import Optimizers

F = TypeVar("F", bound=Callable[..., Any])

AS_RANK = (
    "It ran as rank 0 of {0} in a process group of its own (backend fake), in which collectives bring nothing. A build "
    "that opens a group itself does so only where torch.distributed.is_initialized() is false"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Among:
    """Among how many ranks a step is recorded, and how they share a model whose build does not share it."""

    ranks: int
    shard: Literal["fsdp2"] | None = None

    def hint(self) -> str:
        """Say how the user's build was called."""
        return AS_RANK.format(self.ranks)


def options(function: F) -> F:
    """Give a verb ``--ranks`` and ``--shard``."""
    ranks = click.option(
        "--ranks",
        type=click.IntRange(min=1),
        metavar="NUMBER",
        help="Of a function: plan for each of so many ranks, none of which has to be there. The function shards "
        "(fully_shard) or wraps (DistributedDataParallel) as in training, and returns the batch of one rank.",
    )
    shard = click.option(
        "--shard",
        type=click.Choice(["fsdp2"]),
        help="With --ranks, of a function that shards nothing: FSDP2 over the model's repeated blocks and its root.",
    )
    return ranks(shard(function))


def among(ranks: int | None, shard: Literal["fsdp2"] | None) -> Among | None:
    """Return what was asked for; None for one process alone.

    Raises:
        UsageError: a way to share the model was given, but no number of ranks.
    """
    if ranks is None:
        if shard is not None:
            raise click.UsageError("--shard goes with --ranks, the number of ranks that share the model")
        return None
    return Among(ranks=ranks, shard=shard)


@contextmanager
def world_of(asked: Among | None) -> Iterator[None]:
    """Inside the block, make this process one of the ranks that were asked for; do nothing if none were."""
    if asked is None:
        yield
        return
    require_torch()
    from .._record.one_rank.group import world_of as opened

    with opened(asked.ranks):
        yield


def profiles_among(
    target: str,
    made: Target,
    asked: Among,
    devices: Sequence[str | None],
    *,
    optimizer: Optimizers | None,
    holds_outputs: bool = True,
) -> list[Profile]:
    """Record a step of what `target` made on one of the ranks, with the seconds of each device."""
    from .._record.one_rank.rank import OnRank, profiles_of_rank

    with calling(f"a step of {target}", asked.hint()):
        return profiles_of_rank(
            OnRank(made.model, made.inputs, made.loss, optimizer, holds_outputs), devices, asked.shard
        )
