"""What a fake recording leaves in a user's own code, where no sandbox reaches: nothing may train on it."""

from __future__ import annotations

import functools
import gc
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from .. import _torch_private as private
from .._data.errors import ProfilingError
from .alive import alive

_log = logging.getLogger("autockpt")


class LeftOver(torch.Tensor):
    """A tensor without values that somebody has kept: whoever computes with it is told."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise ProfilingError(
            "a cache of the model's own holds a tensor that a fake recording made, which has no values. Empty that "
            "cache, or keep what depends on the size of a batch out of it."
        )

    __torch_dispatch__ = __torch_function__


@contextmanager
def nothing_left_over(mode: Any) -> Iterator[None]:
    """Let nobody compute with the fake tensors that are made inside the block.

    Caches of `functools`, but torch's, that something was put into meanwhile are emptied. An error, and those that led
    to it, hold nothing of what ran: only the lines stay. Tensors that are still there fail from then on.
    """
    before = {id(cache): (cache, cache.cache_info().misses) for cache in alive(functools._lru_cache_wrapper)}
    try:
        yield
    except Exception as error:
        chain: BaseException | None = error
        while chain is not None:
            traceback.clear_frames(chain.__traceback__)
            chain = chain.__context__
        raise
    finally:
        for cache, misses in before.values():
            if cache.cache_info().misses != misses and not str(cache.__module__).startswith("torch."):
                cache.cache_clear()
        _replace(mode)


def _replace(mode: Any) -> None:
    """Have every tensor of a fake mode fail that is still there, and say so."""
    if not _fakes(mode):
        return
    gc.collect()  # graphs of the recording, which lie in cycles
    left = _fakes(mode)
    for fake in left:
        fake.__class__ = LeftOver
    if left:
        _log.warning(
            "the model's own code kept %d tensors of a recording in which nothing ran, and which have no values. "
            "Training ends with an error where it reads one.",
            len(left),
        )


def _fakes(mode: Any) -> list[torch.Tensor]:
    return [fake for fake in alive(private.FakeTensor) if fake.fake_mode is mode]
