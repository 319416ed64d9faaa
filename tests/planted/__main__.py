"""`python -m tests.planted [--whole] [PART or words of a sentence]...`: plant each fault, and say which test finds it.

Each is planted in a copy of the tree, by itself. First the tests run that are expected to find it, up to the first that
fails. With `--whole` those that found nothing get the whole suite, as `make test` runs it. A test counts if it passes
without the fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import torch  # noqa: F401 - for the processes that are forked

from tests.planted.fault import PARTS, Fault, faults

ROOT = Path(__file__).parents[2]
NOT_COPIED = (".git", ".venv*", "build", "dist", "wheels", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
ALWAYS = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider")
PARALLEL = ("-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")
ON_DEVICE = ("-p", "tests.fake_cuda.plugin", "--device", "fake-cuda")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
DEVICE = "tests/device/"

MOST_SECONDS = 600
"""How long the tests of one fault may take. A fault that lets them hang is not found."""

MOST_SECONDS_OF_ALL = 3600
"""How long the whole suite may take."""


class Tree:
    """A copy of the tree, in which tests run.

    Args:
        folder: where it lies; an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._root, self._written = folder / "tree", 0
        shutil.copytree(ROOT, self._root, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))

    def write(self, file: str, source: str) -> None:
        """Write a file of the tree. Each time it is as new as none before: Python's cache looks at whole seconds."""
        self._written += 1
        path = self._root / file
        path.write_text(source)
        os.utime(path, (path.stat().st_mtime + 2 * self._written,) * 2)

    def failing(self, tests: Sequence[str]) -> str:
        """Run tests up to the first that fails, and return its name; empty if all pass."""
        there = [each for each in tests if each.startswith(DEVICE)]
        here = [each for each in tests if each not in there]
        return (here and self._failing(here)) or (there and self._failing([*ON_DEVICE, *there])) or ""

    def failing_of_all(self) -> str:
        """Run the suite as `make test` does, up to the first test that fails; returns as `failing`."""
        every = (PARALLEL, [*ON_DEVICE, *PARALLEL])
        return next((name for tests in every if (name := self._failing(tests, MOST_SECONDS_OF_ALL))), "")

    def _failing(self, arguments: Sequence[str], most_seconds: float = MOST_SECONDS) -> str:
        said = self._root.with_name("said")
        child = os.fork()  # torch is there already: importing it takes longer than most of these tests
        if not child:
            self._run([*ALWAYS, *arguments], said)
        code = _waited(child, most_seconds)
        names = FAILED.findall(said.read_text())
        if code not in (None, 0, 1) and not names:
            raise RuntimeError(f"{' '.join(arguments)} could not be run:\n{said.read_text()[-4000:]}")
        return names[0] if names and code is not None else ""

    def _run(self, arguments: Sequence[str], said: Path) -> NoReturn:
        """Become a process that runs pytest in the tree, and writes down what it says."""
        code = 3
        try:
            os.setsid()
            with said.open("w") as file:
                for stream in (1, 2):
                    os.dup2(file.fileno(), stream)
            os.chdir(self._root)
            os.environ["PYTHONPATH"] = str(self._root)
            os.environ.setdefault("FAKE_CUDA_CACHE", str(ROOT / "build"))
            sys.path[:] = [str(self._root), *(each for each in sys.path if Path(each).resolve() != ROOT)]
            for name in [each for each in sys.modules if each.partition(".")[0] == "tests"]:
                del sys.modules[name]
            code = int(pytest.main([*arguments]))
        finally:
            sys.stdout.flush()
            os._exit(code)


def _waited(child: int, most_seconds: float) -> int | None:
    """Wait until a process is over, and return its exit code; None if it took too long, and was ended."""
    until = time.monotonic() + most_seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def finder(tree: Tree, fault: Fault, *, whole: bool) -> str:
    """Return the first test that fails with a fault and not without it; empty if there is none."""
    source = (ROOT / fault.file).read_text()
    tree.write(fault.file, fault.planted_in(source))
    try:
        name = tree.failing(fault.found)
        if not name and whole:
            name = tree.failing_of_all()
    finally:
        tree.write(fault.file, source)
    return name if name and not tree.failing((name,)) else ""


def wanted(words: Iterable[str]) -> list[Fault]:
    """Return the faults of some parts, and those that some words are in; all where none are given."""
    chosen = [*words]
    others = [word for word in chosen if word not in PARTS]
    return [each for each in faults() if not chosen or each.part in chosen or any(word in each.says for word in others)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description="Plant faults, and find them.")
    parser.add_argument("words", nargs="*", help="names of parts, or words of sentences; all faults without any")
    parser.add_argument(
        "--whole", action="store_true", help="run the whole suite where the expected tests find nothing"
    )
    asked = parser.parse_args()
    chosen, found = wanted(asked.words), 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Tree(Path(folder))
        for number, fault in enumerate(chosen, 1):
            began = time.monotonic()
            name = finder(tree, fault, whole=asked.whole)
            found += bool(name)
            told = f"{number:>3} {time.monotonic() - began:5.1f} s  {fault.part:<10} {fault.says}\n{'':15}"
            print(f"{told}{name or 'NOT FOUND'}", flush=True)  # noqa: T201
    print(f"{found} of {len(chosen)} planted faults are found")  # noqa: T201
    return int(found < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
