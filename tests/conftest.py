"""What every test shares. Needs no torch: tests/solvers and tests/dataflow run without it."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis
import pytest

# Two threads that wait for one another on a busy machine make every step several times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("house", derandomize=True, deadline=None)
hypothesis.settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run check every segment of every plan in every step."""
    parser.addoption("--check-always", action="store_true", help='apply() has check="always" where it has "sampled"')


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile: importing leaves little, and looking for it takes a quarter of the seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no worker is alone with it at the end; skip what has no CUDA device."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    from tests.fake_cuda.plugin import may_need_device

    for path in {item.path for item in on_gpu if not may_need_device(item.path)}:
        raise pytest.UsageError(
            f"{path} has tests marked gpu and says nothing of it, so that `make test-device` would miss them"
        )
    import torch

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True, scope="session")
def hasty() -> Iterator[None]:
    """Let profiles time two forwards and two steps at most: no test is about how near their seconds are."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    from tests.doors import timing

    with mock.patch.object(timing, "REPEATS", 2):
        yield


@pytest.fixture(autouse=True, scope="session")
def seeds_note_no_stack() -> Iterator[None]:
    """Let seeds wait for devices that are not there without the stack, in text: three times sixty frames a seed."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    quiet = SimpleNamespace(**{**vars(traceback), "format_stack": list})
    with contextlib.ExitStack() as stack:
        for kind in (torch.cuda, torch.xpu, torch.mtia):
            stack.enter_context(mock.patch.object(kind, "traceback", quiet))
        yield


@pytest.fixture(autouse=True, scope="session")
def checked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check every segment in every step, where the run is to."""
    if not request.config.getoption("--check-always"):
        yield
        return
    from tests.doors import ReplayChecks

    plain = ReplayChecks.of

    def of(plan: Any, check: Any, *, governed: bool, **others: Any) -> ReplayChecks | None:
        return plain(plan, "always" if check == "sampled" else check, governed=governed, **others)

    with mock.patch.object(ReplayChecks, "of", of):
        yield


@pytest.fixture(autouse=True, scope="session")
def modules() -> Iterator[int]:
    """Count the modules that begin."""
    return itertools.count()


@pytest.fixture(autouse=True, scope="module")
def collected(modules: Iterator[int]) -> None:
    """Begin one module in eight without the garbage of those before it: looking for it takes a quarter of a second."""
    if next(modules) % 8 == 0:
        gc.unfreeze()
        gc.collect()


@pytest.fixture(autouse=True)
def nothing_older(collected: None) -> None:
    """Let profiles and measurements, which look through all that there is, leave out what was there before a test."""
    gc.freeze()


@pytest.fixture
def descriptors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the files that what is saved waits in, as they are opened."""
    opened: list[int] = []
    duplicate = os.dup

    def opening(descriptor: int) -> int:
        opened.append(duplicate(descriptor))
        return opened[-1]

    monkeypatch.setattr(os, "dup", opening)
    return opened


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bfloat16 run everywhere: some virtual machines announce instructions that oneDNN uses, and lack them."""
    import torch

    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let kernels repeat themselves bit for bit, as far as torch has such kernels."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # With warn_only=True a device's memory-efficient attention, and cuDNN's, keep the backward that does not.
    plain_products = sdpa_kernel(SDPBackend.MATH) if torch.cuda.is_available() else contextlib.nullcontext()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with plain_products:
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """Name the test that leaves gradients switched off, and not those after it in the same process."""
    yield
    torch = sys.modules.get("torch")  # tests of the solvers run where there is none
    if torch is not None:
        left_off = not torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        assert not left_off, "this test left gradients switched off"
