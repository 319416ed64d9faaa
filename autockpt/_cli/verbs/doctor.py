"""``autockpt doctor``: what machine, torch and allocator there are, whether allocations are seen, what is refused."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec

from ... import __version__
from ..._data.hardware.host import physical_bytes
from ..._show.page import filled
from ...solvers.units import format_bytes
from ..screen import progress
from ..verb import Result, verb

OLDEST_TORCH = (2, 11)

LIBRARIES = ("numpy", "msgspec", "pulp", "highspy", "transformers")

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
"""The variables that change how torch allocates on a device."""

ROWS, WIDTH = 1021, 4096
TRIED_BYTES = ROWS * WIDTH * 4
"""Size of the tensor that recording must see. Each other tensor of that step has this size, or less than a tenth."""

ROUNDING_BYTES = 2 * 2**20
"""An allocator may allocate up to so much more than was asked."""

FILLED = 0.5
"""If less than this share of a device's memory is free, a note says so."""


class SeenDevice(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator. If it does not answer, `free_bytes` is None and `error` says why."""

    name: str
    capability: str
    total_bytes: int
    free_bytes: int | None
    error: str = ""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A small step that was recorded: the bytes of the allocation seen for its tensor, or the error that was raised."""

    device: str
    asked_bytes: int = TRIED_BYTES
    seen_bytes: int | None = None
    error: str = ""

    def __str__(self) -> str:
        if self.seen_bytes:
            return f"allocations are seen: {self.seen_bytes:,} bytes for a tensor of {self.asked_bytes:,}"
        return f"allocations are not seen: none for a tensor of {self.asked_bytes:,} bytes"


class DoctorProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is refused, or good to know: a device or a library, the reason, and what to do."""

    kind: Literal["refused", "note"]
    what: str
    why: str


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints. None stands for what is missing, and for what the system does not say.

    Attributes:
        cores: how many this process may use.
        cuda: the version that torch was built with.
        allocator: how torch allocates on the devices: ``native``, or another backend.
        settings: the variables in the environment that change it.
        tried: recordings of a small step.
    """

    autockpt: str
    python: str
    system: str
    cores: int
    memory_bytes: int | None
    torch: str | None = None
    cuda: str | None = None
    driver: str | None = None
    devices: tuple[SeenDevice, ...] = ()
    allocator: str | None = None
    settings: dict[str, str]
    libraries: dict[str, str]
    tried: tuple[Tried, ...] = ()
    problems: tuple[DoctorProblem, ...] = ()


@verb("autockpt doctor", "autockpt doctor --json")
def doctor() -> Result:
    """Say what machine, torch, CUDA, driver and allocator there are, and what is refused, to paste into a bug report.

    Records a small step on the CPU, and on the first CUDA device if there is one, to see whether allocations are seen.
    The exit status is 1 if they are not, or if torch is not installed.
    """
    with progress("recording a small step"):
        report = examine()
    failures = [f"recording on {each.device} sees no allocations" for each in report.tried if not each.seen_bytes]
    return Result(
        report,
        lambda columns: filled("\n".join(lines(report)), max(columns, 20)) + "\n",
        "; ".join(failures) if report.torch else "torch is not installed",
    )


def examine() -> DoctorReport:
    """Look at the machine, and record a small step on the CPU and on the first CUDA device."""
    report = DoctorReport(
        autockpt=__version__,
        python=platform.python_version(),
        system=", ".join([platform.system(), platform.machine(), " ".join(filter(None, platform.libc_ver()))]),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=physical_bytes(),
        driver=_driver(),
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        libraries=dict(_libraries()),
        **(_of_torch() if importlib.util.find_spec("torch") else {}),
    )
    return msgspec.structs.replace(report, problems=tuple(problems(report)))


def problems(report: DoctorReport) -> Iterator[DoctorProblem]:
    """Find what is refused on a machine, and what is good to know."""
    if report.torch is None:
        why = "it is not installed, so that models cannot run; solve, frontier, explain and profiles do without"
        yield DoctorProblem(kind="refused", what="torch", why=why)
        return
    numbers = re.match(r"(\d+)\.(\d+)", report.torch)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        yield DoctorProblem(kind="refused", what="torch", why=f"{report.torch} is older than 2.11; install a newer one")
    if not report.devices:
        yield DoctorProblem(kind="refused", what="cuda", why=_why_no_device(report))
    for i, device in enumerate(report.devices):
        if device.error:
            yield DoctorProblem(kind="refused", what="cuda", why=f"device {i} does not answer: {device.error}")
        elif device.free_bytes is not None and device.free_bytes < FILLED * device.total_bytes:
            free, total = device.free_bytes / 2**30, device.total_bytes / 2**30
            why = f"{free:.1f} of {total:.1f} GiB are free: others hold the rest"
            yield DoctorProblem(kind="note", what=f"device {i}", why=why)
    hiding = ", ".join(f"{name}={value}" for name, value in report.settings.items() if _hides(name, value))
    for each in report.tried:
        if not each.seen_bytes:
            why = each.error or f"a tensor of {each.asked_bytes:,} bytes did not appear among the recorded allocations"
            if hiding and each.device != "cpu":
                why = f"{hiding}: torch then reports no allocations, which recording needs; unset it"
            yield DoctorProblem(kind="refused", what=each.device.partition(":")[0], why=why)
    if "highspy" not in report.libraries:
        yield DoctorProblem(kind="note", what="highspy", why="not installed: plans are those of the instant solvers")


def lines(report: DoctorReport) -> Iterator[str]:
    """Yield what a person reads of a report."""
    yield f"autockpt {report.autockpt}, Python {report.python}, {report.system}"
    memory = format_bytes(report.memory_bytes) if report.memory_bytes else "unknown"
    yield f"machine: cores {report.cores}, memory {memory}"
    built = f"built for CUDA {report.cuda}" if report.cuda else "built without CUDA"
    yield f"torch: {report.torch}, {built}" if report.torch else "torch: not installed"
    yield f"driver: {report.driver or 'none found'}"
    for i, device in enumerate(report.devices):
        free = device.error or f"{format_bytes(device.free_bytes or 0)} free"
        yield f"device {i}: {device.name}, {device.capability}, {format_bytes(device.total_bytes)}, {free}"
    settings = [f"{name}={value}" for name, value in report.settings.items()] or ["no settings in the environment"]
    yield f"allocator: {', '.join([report.allocator or 'none for devices', *settings])}"
    yield f"libraries: {', '.join(f'{name} {version}' for name, version in report.libraries.items())}"
    yield from (f"recording on {each.device}: {each}" for each in report.tried)
    for problem in sorted(report.problems, key=lambda each: each.kind == "note"):
        yield f"{problem.kind}: {problem.what}: {problem.why}"
    if not report.problems:
        yield "refused: nothing that can be seen from here"


def _why_no_device(report: DoctorReport) -> str:
    if report.cuda is None:
        return f"torch {report.torch} was built without CUDA; install a build with it"
    driver = f"the driver is {report.driver}" if report.driver else "no driver is found"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = "not set" if visible is None else repr(visible)
    return f"torch sees no device; it was built for CUDA {report.cuda}, {driver}, and CUDA_VISIBLE_DEVICES is {visible}"


def _hides(name: str, value: str) -> bool:
    """Whether torch reports no allocations of a device under an allocator setting."""
    backend = re.search(r"backend\s*:\s*(\w+)", value)
    return name == "PYTORCH_NO_CUDA_MEMORY_CACHING" or (backend is not None and backend[1] != "native")


def _of_torch() -> dict[str, Any]:
    """Return the fields of a report that need torch."""
    import torch

    from ..._torch.devices import present

    devices = tuple(
        SeenDevice(
            name=each.name,
            capability=each.capability,
            total_bytes=each.total_bytes,
            free_bytes=each.free_bytes,
            error=_line(each.error) if each.error is not None else "",
        )
        for each in present.described()
    )
    tried = dict.fromkeys(["cpu", *([str(present.best_device())] if devices and not devices[0].error else [])])
    return {
        "torch": str(torch.__version__),
        "cuda": present.built_for(),
        "devices": devices,
        "allocator": present.allocator(),
        "tried": tuple(map(_try, tried)),
    }


def _try(device: str) -> Tried:
    """Record a step that makes a tensor of `TRIED_BYTES`."""
    import torch

    from ..._record import profile

    try:
        model = torch.nn.Sequential(torch.nn.Linear(16, WIDTH), torch.nn.Tanh()).to(device)
        recorded = profile(model, torch.ones(ROWS, 16, device=device))
    except Exception as error:  # whatever breaks in a recording is what the report is for
        return Tried(device=device, error=_line(error))
    seen = [size for size in recorded.tensors.bytes if 0 <= size - TRIED_BYTES < ROUNDING_BYTES]
    return Tried(device=device, seen_bytes=min(seen, default=None))


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, as the kernel or its own tool says."""
    with suppress(OSError):
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", Path("/proc/driver/nvidia/version").read_text())
        if found:
            return found[1]
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
        return answer.split("\n", 1)[0].strip() or None
    return None


def _libraries() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
