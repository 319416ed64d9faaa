"""Looking for live tensors while other threads run: none of them may be freeing one meanwhile."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType

HOLD_NO_TENSORS = (
    *("rich.", "tqdm."),  # progress bars
    *("IPython.", "ipykernel.", "tornado.", "zmq."),  # notebooks
    *("tensorboard.", "wandb."),  # what logs
    "torch._inductor.compile_worker.",
)
"""How the names of modules begin, with a dot behind them, whose own threads hold no tensors."""


@contextlib.contextmanager
def nothing_is_freed() -> Iterator[bool]:
    """Say whether no other thread frees a tensor inside the block, and collect no garbage there.

    torch releases the GIL in the middle of freeing a tensor. Who finds the tensor then would free it a second time, and
    the process would crash. A thread that holds no tensors frees them only where it happens to collect garbage.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        others = [each for each in threading.enumerate() if each is not threading.current_thread()]
        yield not others or (_hold_no_tensors(others) and _collects())
    finally:
        if collects:
            gc.enable()


def _hold_no_tensors(threads: Iterable[threading.Thread]) -> bool:
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)  # it refers to this dictionary
    return all(f"{_module_of(each, frames.get(each.ident or 0))}.".startswith(HOLD_NO_TENSORS) for each in threads)


def _module_of(thread: threading.Thread, frame: FrameType | None) -> str:
    """Name the module whose thread it is: that of its class, or of the first function that it runs."""
    module = type(thread).__module__
    while frame is not None and type(thread) is threading.Thread:
        name = str(frame.f_globals.get("__name__"))
        module, frame = (module if name == threading.__name__ else name), frame.f_back
    return module


def _collects() -> bool:
    """Whether a collection of garbage runs if asked for: while another thread is at one, it does not."""
    garbage = list[object]()
    garbage.append(garbage)
    del garbage
    return gc.collect(0) > 0
