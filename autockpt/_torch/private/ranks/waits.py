"""When a schedule of a pipeline begins to wait for what its stages receive."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


class Waits(Protocol):
    """Is told of waits; see `watch_waits`."""

    def waits(self, arriving: Sequence[Tensor]) -> object:
        """Note that a schedule is about to wait for these tensors, all of which it has asked for."""


def watch_waits(watcher: Waits) -> None:
    """Tell `watcher` of every wait of a schedule that begins, until `unwatch_waits`; it is not kept alive.

    Until then `_Posts` stands for torch's function that posts sends and receives.
    """
    schedules = _schedules()
    if schedules is not None:
        posts = schedules._batch_p2p
        if not isinstance(posts, _Posts):
            posts = schedules._batch_p2p = _Posts(posts)
        posts.watchers.add(watcher)


def unwatch_waits(watcher: Waits) -> None:
    """Tell `watcher` of no more waits. Put torch's function back if no watcher is left."""
    schedules = _schedules()
    if schedules is not None and isinstance(posts := schedules._batch_p2p, _Posts):
        posts.watchers.discard(watcher)
        _put_back(posts)


def outputs_awaiting(stage: Any, arriving: Sequence[Tensor]) -> list[Tensor]:
    """Return a stage's outputs of the microbatches whose gradients it receives into some of the `arriving` tensors."""
    into = set(map(id, arriving))
    numbers = (
        number
        for number, infos in stage.grad_recv_info.items()
        if any(id(getattr(info, "buffer", None)) in into for info in infos)
    )
    outputs = (stage.fwd_cache[number][0] for number in numbers if number in stage.fwd_cache)
    return [each for each in tree_leaves(list(outputs)) if isinstance(each, Tensor)]


def _put_back(posts: _Posts) -> None:
    """Put torch's function back if no watcher is left, unless somebody has put another over `posts`."""
    schedules = _schedules()
    if not posts.watchers and schedules._batch_p2p is posts:
        schedules._batch_p2p = posts.plain


def _schedules() -> Any:
    schedules = sys.modules.get("torch.distributed.pipelining.schedules")
    return schedules if hasattr(schedules, "_batch_p2p") else None


class _Posts:
    """Stands for torch's function that posts sends and receives, and that returns what has to be waited for."""

    def __init__(self, plain: Callable[..., list[Any]]) -> None:
        self.plain = plain
        self.watchers: weakref.WeakSet[Waits] = weakref.WeakSet()

    def __call__(self, ops: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        posted = self.plain(ops, *args, **kwargs)
        _put_back(self)
        arriving = [each.tensor for each in ops if each.op is torch.distributed.irecv]
        return _Posted(posted, arriving, self.watchers) if arriving else posted


class _Posted(list[Any]):
    """What has to be waited for. Schedules go through it once, and wait for each."""

    def __init__(self, posted: Sequence[Any], arriving: list[Tensor], watchers: weakref.WeakSet[Waits]) -> None:
        super().__init__(posted)
        self._arriving, self._watchers = arriving, watchers

    def __iter__(self) -> Iterator[Any]:
        arriving, self._arriving = self._arriving, []
        for watcher in list(self._watchers) if arriving else ():
            watcher.waits(arriving)
        return super().__iter__()
