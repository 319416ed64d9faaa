"""Stage 3, then: the tests marked ``gpu``, one row each."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import Setting

__all__ = ["files", "rows"]

ROOT = Path(__file__).parents[2]


class TestFailed(Exception):
    """A test that did not pass; the message is its own."""


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return a row for each file that has such tests: pytest is a process each, so that none that dies takes another
    with it. At toy size the first file stands for all."""
    some = files() if setting.size == "full" else files()[:1]
    return [Job(name=f"tests: {path}", run=partial(_run, path), process="tests") for path in some]


def files() -> list[Path]:
    """Name the files of tests that mention the mark, or devices that bear it."""
    found = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _marked(path)]
    return [path for path in found if path.parts[1] != "benchmarks"]


def _marked(path: Path) -> bool:
    return bool(re.search(r"mark\.gpu|hazards\.devices import", path.read_text()))


def _there() -> list[str]:
    """Return the options with which tests find the device that is here where torch has none of its own."""
    if torch.version.cuda or not torch.cuda.is_available():
        return []
    return ["-p", "tests.fake_cuda.plugin", "--device", "fake-cuda"]


def _run(*paths: Path) -> Iterator[Figures]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *_there()]
        command = [sys.executable, "-m", "pytest", *options, *map(str, paths)]
        ended = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False)
        if not report.exists():
            raise TestFailed(f"pytest ended with {ended.returncode} and no report")
        cases = list(ElementTree.parse(report).iter("testcase"))
    bad: list[str] = []
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in cases:
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[outcome] += 1
        for child in case:
            if child.tag in ("failure", "error"):
                bad.append(f"{case.get('name')}: {' '.join((child.get('message') or '').split())[:300]}")
    yield "predicted", {"failed": 0}
    yield "measured", {**counts, "failures": bad}
    if bad:
        raise TestFailed(f"{len(bad)} of {len(cases)}: {bad[0]}")
