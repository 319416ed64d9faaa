"""Whether live tensors may be looked for while other threads run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests.doors import nothing_is_freed


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Thread]]:
    """The threads that are said to run beside this one; a test before may have left others."""
    others, done = list[threading.Thread](), threading.Event()
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *others])
    library = ModuleType("tqdm.stand_in")
    vars(library).update(done=done)
    exec("def waits():\n    done.wait()", vars(library))
    others.append(threading.Thread(target=vars(library)["waits"], daemon=True))
    others[0].start()
    yield others
    done.set()
    others[0].join()


def test_a_thread_of_a_library_that_holds_no_tensors_does_not_count(waiting: list[threading.Thread]) -> None:
    with nothing_is_freed() as safe:
        assert safe and not gc.isenabled()
    assert gc.isenabled() and waiting


def test_a_thread_that_may_hold_tensors_counts(waiting: list[threading.Thread]) -> None:
    """A loop's own thread waits with a tensor in a variable, and lets go of it whenever it wakes."""
    wakes = threading.Event()

    def holds() -> None:
        tensor = torch.zeros(4)
        wakes.wait()
        del tensor

    waiting.append(threading.Thread(target=holds))
    waiting[-1].start()
    with nothing_is_freed() as safe:
        assert not safe
    wakes.set()
    waiting[-1].join()


def test_a_thread_that_has_not_begun_counts(waiting: list[threading.Thread]) -> None:
    waiting.append(threading.Thread(target=print))
    with nothing_is_freed() as safe:
        assert not safe


@pytest.mark.usefixtures("waiting")
def test_while_a_collection_is_under_way_nobody_looks() -> None:
    """Whatever thread is at it, it may be in the middle of freeing a tensor."""
    found: list[bool] = []

    def looks(phase: str, _: object) -> None:
        if phase == "start" and not found:
            with nothing_is_freed() as safe:
                found.append(safe)

    gc.callbacks.append(looks)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(looks)
    assert found == [False]
