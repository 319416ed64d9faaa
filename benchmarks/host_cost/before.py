"""Time planned and recorded steps with this checkout and with an older commit, in processes that take turns.

The older one is built as a wheel into an environment of its own by `make old`, over the libraries of ``.venv``, once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.environment import table, write

FOLDER = Path(__file__).with_suffix("")
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("before_worker.py")
COMMIT = "21f7abc"
PAIRS, ROUNDS = 8, 5
NOTHING = "autockpt, kept calls"
"""Costs next to nothing, so that a ratio of it says nothing."""

Found = dict[str, dict[str, dict[str, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=COMMIT, help="what this checkout is compared with")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="processes of each version")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each loop, in each process")
    arguments = parser.parse_args()
    pythons = {"before": older(arguments.commit), "now": Path(sys.executable)}
    pairs: list[dict[str, Found]] = []
    for number in range(arguments.pairs):
        order = list(pythons)[:: -1 if number % 2 else 1]
        pairs.append({version: _run(pythons[version], version, arguments.rounds) for version in order})
        print(f"{number + 1} of {arguments.pairs}", flush=True)
    write(FOLDER, {"commit": arguments.commit, "pairs": pairs}, report(pairs))


def older(commit: str) -> Path:
    """Return a Python that has an older autockpt, made where there is none."""
    home = f".venv-{commit}"
    subprocess.run(["make", "--quiet", "old", f"OLD_COMMIT={commit}", f"OLD={home}"], cwd=ROOT, check=True)
    return ROOT / home / "bin" / "python"


def _run(python: Path, version: str, rounds: int) -> Found:
    """Time one process: the older version sees no folder of this checkout before its own."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(python), *(["-I"] if version == "before" else []), str(WORKER), str(ROOT), str(rounds)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environ).stdout
    found: Found = json.loads(said.splitlines()[-1])
    return found


def report(pairs: list[dict[str, Found]]) -> str:
    """Lay out the lowest reading of each version, their ratio, and the quartiles of the ratios of pairs."""
    lines = []
    for what, name, figure in _figures(pairs[0]["now"]):
        before, now = ([pair[version][what][name][figure] for pair in pairs] for version in ("before", "now"))
        unit, scale = ("µs a call", 1.0) if what == "calls" else ("ms a step", 1e3)
        lowest = [f"{min(each) * scale:.3g}" for each in (before, now)]
        ratios = ["", ""] if figure == NOTHING else [f"{min(now) / min(before):.3f}", _quartiles(before, now)]
        lines.append([name, f"{figure}, {unit}", *lowest, *ratios])
    return table(["model", "what", "before, lowest", "now, lowest", "now / before", "of pairs, quartiles"], lines)


def _figures(found: Found) -> Iterator[tuple[str, str, str]]:
    for what, names in found.items():
        for name, figures in names.items():
            yield from ((what, name, figure) for figure in figures)


def _quartiles(before: list[float], now: list[float]) -> str:
    ratios = [one / other for one, other in zip(now, before, strict=True)]
    return " ".join(f"{each:.2f}" for each in statistics.quantiles(ratios, n=4))


if __name__ == "__main__":
    main()
