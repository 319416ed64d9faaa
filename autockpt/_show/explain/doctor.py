"""What the doctor found, as lines to paste into a bug report."""

from __future__ import annotations

from collections.abc import Iterator

from ..._check.doctor import DoctorReport, Tried
from ...solvers.units import format_bytes

LINES = 15
"""The text has no more lines than this."""

DEVICES_SHOWN = 3


def doctor_text(report: DoctorReport) -> str:
    """Lay out the report in at most `LINES` lines; where there is more to say, the last one says so."""
    lines = list(_lines(report))
    if len(lines) > LINES:
        more = len(lines) - LINES + 1
        lines = [*lines[: LINES - 1], f"… and {more} more lines: autockpt doctor --json"]
    return "\n".join(lines) + "\n"


def _lines(report: DoctorReport) -> Iterator[str]:
    yield f"autockpt {report.autockpt}, Python {report.python}, {report.system}"
    memory = format_bytes(report.memory_bytes) if report.memory_bytes else "unknown"
    yield f"machine: cores {report.cores}, memory {memory}"
    built = f"built for CUDA {report.cuda}" if report.cuda else "built without CUDA"
    yield f"torch: {report.torch}, {built}" if report.torch else "torch: not installed"
    yield f"driver: {report.driver or 'none found'}"
    for i, device in enumerate(report.devices[:DEVICES_SHOWN]):
        free = device.error or f"{format_bytes(device.free_bytes or 0)} free"
        yield f"device {i}: {device.name}, {device.capability}, {format_bytes(device.total_bytes)}, {free}"
    if len(report.devices) > DEVICES_SHOWN:
        yield f"device: {len(report.devices) - DEVICES_SHOWN} more"
    settings = [f"{name}={value}" for name, value in report.settings.items()] or ["no settings in the environment"]
    yield f"allocator: {', '.join([report.allocator or 'none for devices', *settings])}"
    yield f"libraries: {', '.join(f'{name} {version}' for name, version in report.libraries.items())}"
    for tried in report.tried:
        yield f"recording on {tried.device}: {_seen(tried)}"
    for problem in sorted(report.problems, key=lambda each: each.kind == "note"):
        yield f"{problem.kind}: {problem.what}: {problem.why}"
    if not report.problems:
        yield "refused: nothing that can be seen from here"


def _seen(tried: Tried) -> str:
    if tried.seen_bytes:
        return f"allocations are seen: {tried.seen_bytes:,} bytes for a tensor of {tried.asked_bytes:,}"
    return f"allocations are not seen: none for a tensor of {tried.asked_bytes:,} bytes"
