"""What every benchmark says about where it ran, and how it is written down."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["environment", "table", "with_steady_allocator", "write", "write_page", "write_parts"]

RESULTS = "<!-- results -->"

ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
"""Without it glibc gives large blocks back and fetches them again, with a page fault a page, step by step."""


def environment() -> dict[str, Any]:
    """Machine, versions, date and command."""
    import transformers

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu, {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }


def with_steady_allocator() -> None:
    """Start the command again under `ALLOCATOR`, unless that is how it was started."""
    if not ALLOCATOR.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", _module(), *sys.argv[1:]], os.environ | ALLOCATOR)


def table(heads: list[str], rows: Iterable[Iterable[object]]) -> str:
    """Lay out a Markdown table."""
    lines = [heads, ["---"] * len(heads), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(folder: Path, raw: dict[str, Any], text: str) -> None:
    """Write the raw results as JSON, and the table into the folder's README after its marker line."""
    write_page(folder / "README.md", folder / "results.json", raw, text)


def write_page(page: Path, file: Path, raw: dict[str, Any], text: str) -> None:
    """Write the raw results into a file as JSON, and the table into a page after its marker line."""
    where = environment()
    file.write_text(json.dumps({"environment": where, **raw}, indent=1) + "\n")
    page.write_text(f"{page.read_text().partition(RESULTS)[0]}{RESULTS}\n\n{_ran(where)}\n\n{text}\n")


def write_parts(folder: Path, parts: Mapping[str, Callable[[dict[str, Any]], str]]) -> None:
    """Write into the folder's README, after its marker line, what every part found whose ``PART.json`` is there.

    Args:
        folder: of the benchmark.
        parts: by name, what makes a table of the rows of its file.
    """
    found = []
    for part, show in parts.items():
        if (file := folder / f"{part}.json").exists():
            raw = json.loads(file.read_text())
            found.append(f"## {part}\n\n{_ran(raw['environment'])}\n\n{show(raw['rows'])}\n")
    readme = folder / "README.md"
    readme.write_text(f"{readme.read_text().partition(RESULTS)[0]}{RESULTS}\n\n" + "\n".join(found))


def _ran(where: dict[str, Any]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in where.items() if key != "command")
    return f"`{where['command']}`: {said}."


def _module() -> str:
    path = Path(sys.argv[0]).resolve()
    return ".".join(path.with_suffix("").parts[path.parts.index("benchmarks") :]).removesuffix(".__main__")
