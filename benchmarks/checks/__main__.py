"""Measure what the nets cost, and train many models with every replay checked.

python -m benchmarks.checks cost     # CPU seconds inside the checks, and of a rehearsed step
python -m benchmarks.checks clean    # false alarms: none; calls that the recorder refuses
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.checks import clean, cost
from benchmarks.environment import environment, write_parts

FOLDER = Path(__file__).parent

BEFORE = FOLDER / "before.json"
"""Rows of `clean` that a version made whose recorder refused calls by guesses."""

RUN: dict[str, Callable[[list[str] | None], Iterator[tuple[str, dict[str, Any]]]]] = {
    "cost": cost.run,
    "clean": clean.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(RUN), choices=[*RUN, []], metavar="PART")
    parser.add_argument("--models", nargs="+", help="only these; the other rows stay")
    asked = parser.parse_args()
    before = json.loads(BEFORE.read_text())["rows"] if BEFORE.exists() else {}
    show: dict[str, Callable[[dict[str, Any]], str]] = {"cost": cost.show, "clean": partial(clean.show, before=before)}
    for part in asked.parts or RUN:
        file, where = FOLDER / f"{part}.json", environment()
        rows = json.loads(file.read_text())["rows"] if asked.models and file.exists() else {}
        for name, row in RUN[part](asked.models):
            rows[name] = row
            print(show[part]({name: row}).splitlines()[-1], flush=True)
            file.write_text(json.dumps({"environment": where, "rows": rows}, indent=1) + "\n")
    write_parts(FOLDER, show)


if __name__ == "__main__":
    main()
