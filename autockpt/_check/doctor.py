"""The doctor: what machine, torch, CUDA and allocator there are, and whether recording sees what is allocated."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import msgspec

from .. import __version__

OLDEST_TORCH = (2, 11)

LIBRARIES = ("numpy", "msgspec", "pulp", "highspy", "transformers")

SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
"""The variables that change how torch allocates on a device."""

ROWS, WIDTH = 1021, 4096
TRIED_BYTES = ROWS * WIDTH * 4
"""Size of the tensor that recording must see; the other tensors of that step have less than a tenth or the same."""

ROUNDING_BYTES = 2 * 2**20
"""By how much an allocator may hand out more than was asked of it."""

FILLED = 0.5
"""Share of a device's memory below which what is free is worth a word."""


class DeviceFound(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA device.

    Attributes:
        name: what it calls itself.
        capability: its compute capability, as ``9.0``.
        total_bytes: its memory.
        free_bytes: how much of it nobody holds; None where it does not answer.
        error: what it answered instead.
    """

    name: str
    capability: str
    total_bytes: int
    free_bytes: int | None
    error: str = ""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A small step that was recorded.

    Attributes:
        device: where.
        asked_bytes: size of a tensor that the step makes.
        seen_bytes: the allocation that recording saw for it; None where it saw none.
        error: what recording raised, in a line.
    """

    device: str
    asked_bytes: int
    seen_bytes: int | None
    error: str = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is refused, or that is good to know.

    Attributes:
        kind: ``refused``, or ``note``.
        what: the thing: ``cuda``, ``cpu``, ``torch``, a device, a library.
        why: the reason, and what to do.
    """

    kind: Literal["refused", "note"]
    what: str
    why: str


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor found.

    Attributes:
        autockpt: version.
        python: version.
        system: system, processor and C library.
        cores: how many this process may use.
        memory_bytes: physical memory; None where the system does not say.
        torch: version; None where it is not installed.
        cuda: the version of CUDA that torch was built with; None without.
        driver: version of NVIDIA's driver; None where none is found.
        devices: the CUDA devices that torch sees.
        allocator: how torch allocates on them: ``native``, or another backend; None without a device.
        settings: the variables in the environment that change it.
        libraries: versions of what is installed of `LIBRARIES`.
        tried: recordings of a small step.
        problems: what is refused, and why.
    """

    autockpt: str
    python: str
    system: str
    cores: int
    memory_bytes: int | None
    torch: str | None
    cuda: str | None = None
    driver: str | None = None
    devices: tuple[DeviceFound, ...] = ()
    allocator: str | None = None
    settings: dict[str, str]
    libraries: dict[str, str]
    tried: tuple[Tried, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """What should work here and does not, in words."""
        if self.torch is None:
            return ("torch is not installed",)
        return tuple(f"recording on {each.device} sees no allocations" for each in self.tried if not each.seen_bytes)


def examine() -> DoctorReport:
    """Look at the machine, and record a small step on the CPU and on the first CUDA device."""
    report = DoctorReport(
        autockpt=__version__,
        python=platform.python_version(),
        system=", ".join([platform.system(), platform.machine(), " ".join(filter(None, platform.libc_ver()))]),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=_memory_bytes(),
        torch=None,
        driver=_driver(),
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        libraries=dict(_libraries()),
    )
    if importlib.util.find_spec("torch") is None:
        why = "it is not installed, so that models cannot run; solve, frontier, explain and profiles do without"
        return msgspec.structs.replace(report, problems=(Problem(kind="refused", what="torch", why=why),))
    import torch

    devices = tuple(_devices())
    report = msgspec.structs.replace(
        report,
        torch=str(torch.__version__),
        cuda=torch.version.cuda or torch.version.hip,
        devices=devices,
        allocator=torch.cuda.get_allocator_backend() if devices else None,
        tried=(_try("cpu"), *([_try("cuda:0")] if devices and not devices[0].error else [])),
    )
    return msgspec.structs.replace(report, problems=tuple(_problems(report)))


def hiding_settings(settings: Mapping[str, str]) -> list[str]:
    """Return those allocator settings under which torch reports no allocations of a device, as ``NAME=value``."""
    hiding = []
    for name, value in settings.items():
        backend = re.search(r"backend\s*:\s*(\w+)", value)
        another = backend is not None and backend[1] != "native"
        if another or name == "PYTORCH_NO_CUDA_MEMORY_CACHING":
            hiding.append(f"{name}={value}")
    return hiding


def _problems(report: DoctorReport) -> Iterator[Problem]:
    assert report.torch is not None
    numbers = re.match(r"(\d+)\.(\d+)", report.torch)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        yield Problem(kind="refused", what="torch", why=f"{report.torch} is older than 2.11; install a newer one")
    if not report.devices:
        yield Problem(kind="refused", what="cuda", why=_why_no_device(report))
    for i, device in enumerate(report.devices):
        if device.error:
            yield Problem(kind="refused", what="cuda", why=f"device {i} does not answer: {device.error}")
        elif device.free_bytes is not None and device.free_bytes < FILLED * device.total_bytes:
            free, total = device.free_bytes / 2**30, device.total_bytes / 2**30
            why = f"{free:.1f} of {total:.1f} GiB are free: others hold the rest"
            yield Problem(kind="note", what=f"device {i}", why=why)
    for each in report.tried:
        if not each.seen_bytes:
            yield Problem(kind="refused", what=each.device.partition(":")[0], why=_why_unseen(each, report.settings))
    if "highspy" not in report.libraries:
        yield Problem(kind="note", what="highspy", why="not installed: plans are those of the instant solvers")


def _why_no_device(report: DoctorReport) -> str:
    if report.cuda is None:
        return f"torch {report.torch} was built without CUDA; install a build with it"
    driver = f"the driver is {report.driver}" if report.driver else "no driver is found"
    return f"torch sees no device; it was built for CUDA {report.cuda}, {driver}, and CUDA_VISIBLE_DEVICES is " + (
        repr(os.environ["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in os.environ else "not set"
    )


def _why_unseen(tried: Tried, settings: Mapping[str, str]) -> str:
    hiding = hiding_settings(settings) if tried.device != "cpu" else []
    if hiding:
        return f"{', '.join(hiding)}: torch then reports no allocations, which recording needs; unset it"
    return tried.error or f"a tensor of {tried.asked_bytes:,} bytes did not appear among the recorded allocations"


def _try(device: str) -> Tried:
    """Record a step that makes a tensor of `TRIED_BYTES`."""
    import torch

    from .._record import profile

    try:
        model = torch.nn.Sequential(torch.nn.Linear(16, WIDTH), torch.nn.Tanh()).to(device)
        recorded = profile(model, torch.ones(ROWS, 16, device=device))
    except Exception as error:  # whatever breaks in a recording is what the report is for
        return Tried(device=device, asked_bytes=TRIED_BYTES, seen_bytes=None, error=_line(error))
    seen = [size for size in recorded.tensors.bytes if 0 <= size - TRIED_BYTES < ROUNDING_BYTES]
    return Tried(device=device, asked_bytes=TRIED_BYTES, seen_bytes=min(seen, default=None))


def _devices() -> Iterator[DeviceFound]:
    import torch

    if not torch.cuda.is_available():
        return
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        free_bytes, error = None, ""
        try:
            free_bytes = torch.cuda.mem_get_info(i)[0]
        except RuntimeError as raised:  # all of its memory is taken, or it is broken
            error = _line(raised)
        capability = f"{found.major}.{found.minor}"
        yield DeviceFound(
            name=found.name,
            capability=capability,
            total_bytes=found.total_memory,
            free_bytes=free_bytes,
            error=error,
        )


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, as the kernel or its own tool says."""
    with_module = Path("/proc/driver/nvidia/version")
    said = with_module.read_text() if with_module.is_file() else ""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", said)
    if found:
        return found[1]
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.split("\n", 1)[0].strip() or None


def _libraries() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]
