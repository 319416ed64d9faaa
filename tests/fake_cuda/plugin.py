"""``pytest -p tests.fake_cuda.plugin --device fake-cuda``: what is marked ``gpu``, and tests/device, there.

With ``--everything-there`` as well, tests that say nothing of a device make their tensors and models there too (as by
``torch.set_default_device``). They must be fit for that: many read the host's allocator or compare with host tensors.

Where torch has CUDA itself no device is added: what is marked ``gpu`` then runs on the real one, or is skipped where
there is none; tests/device is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import bindings
from .build import NoFakeDevice
from .device import Options, call, installed, set_options

MENTIONS = re.compile(r"\bgpu\b|\bDEVICES\b")
HERE = Path(__file__).parents[1] / "device"
MISSING = pytest.StashKey[str]()
"""Why there is no fake device in a run that asked for one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", choices=["fake-cuda"], help="run what is marked gpu, and tests/device, on a fake CUDA device"
    )
    parser.addoption("--fake-devices", type=int, default=2, help="how many fake devices there are, 1 or 2")
    parser.addoption("--everything-there", action="store_true", help="run all other tests there as well")


def pytest_configure(config: pytest.Config) -> None:
    """Install it, in each worker, before any test module is imported: libraries remember what devices they found."""
    if config.getoption("--device") != "fake-cuda":
        return
    try:
        bindings.install(config.getoption("--fake-devices"))
    except NoFakeDevice as reason:
        config.stash[MISSING] = str(reason)


def pytest_report_header(config: pytest.Config) -> str | None:
    if missing := config.stash.get(MISSING, None):
        return f"fake CUDA device: none, since {missing}"
    return "fake CUDA device: installed" if installed() else None


def may_need_device(path: Path) -> bool:
    """Whether a file of tests says anything of a device: tests marked ``gpu`` may be there only if it does."""
    return HERE in path.parents or bool(MENTIONS.search(path.read_text()))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that cannot have such tests: importing all takes each worker twenty seconds."""
    if not config.getoption("--device") or config.getoption("--everything-there") or collection_path.suffix != ".py":
        return None
    return None if may_need_device(collection_path) else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose what runs there, once conftest files have marked their tests."""
    for item in items:
        if installed() and (lacking := item.get_closest_marker("needs_kernels")):
            item.add_marker(pytest.mark.skip(reason=f"the fake CUDA device cannot show it: {lacking.args[0]}"))
    if not config.getoption("--device") or config.getoption("--everything-there"):
        return
    chosen = [item for item in items if item.get_closest_marker("gpu") or item.get_closest_marker("fake_device")]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.fixture(autouse=True)
def there(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make tensors on the device where a test says nothing of it and the run has ``--everything-there``."""
    node = request.node
    of_itself = node.get_closest_marker("gpu") or node.get_closest_marker("fake_device")
    if not request.config.getoption("--everything-there") or of_itself:
        yield
        return
    import torch

    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture(autouse=True)
def as_at_first() -> Iterator[None]:
    """Let no test leave options, a limit, a current device or workspaces of another size to the next."""
    yield
    if not installed():
        return
    import torch

    set_options(Options())
    call("forget_workspaces")
    for index in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(1.0, index)
    torch.cuda.empty_cache()  # blocks of one test, larger than what another asks for, would be handed out whole
    torch.cuda.set_device(0)
