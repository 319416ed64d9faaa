"""Fake tensors that a user's own code keeps after a fake recording, where no sandbox reaches: using them must fail."""

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
    """A fake tensor that somebody has kept: it has no values, and every operation on it raises."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise ProfilingError(
            "a cache of the model's own holds a tensor that a fake recording made, which has no values. Empty that "
            "cache, or keep what depends on the size of a batch out of it."
        )

    __torch_dispatch__ = __torch_function__


@contextmanager
def nothing_left_over(mode: Any) -> Iterator[None]:
    """Let nobody compute with the fake tensors of `mode` after the block.

    The `functools` caches that were filled inside the block are emptied, except torch's own. If an error leaves the
    block, the local variables of its traceback, and of the errors before it, are cleared. Fake tensors that are still
    alive after that raise on any use.
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
    """Make every live tensor of a fake mode raise on use, and warn if there is any."""
    if not _fakes(mode):
        return
    gc.collect()  # graphs of the recording are reference cycles
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
