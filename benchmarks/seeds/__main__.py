"""``python -m benchmarks.seeds``: ask for every headline, predictions first, and write down the table."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import with_steady_allocator, write
from benchmarks.seeds.claims import CLAIMS, Claim
from benchmarks.seeds.products import products
from benchmarks.seeds.report import report

FOLDER = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[claim.name for claim in CLAIMS], help="other rows stay")
    arguments = parser.parse_args()
    with_steady_allocator()
    torch.set_num_threads(1)
    path = FOLDER / "results.json"
    known = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    wanted = arguments.only or [claim.name for claim in CLAIMS]
    asked = [claim for claim in CLAIMS if claim.name in wanted or claim.name not in known]
    found = {claim.name: _row(claim) for claim in sorted(asked, key=lambda each: each.measured)}
    rows = [found.get(claim.name) or known[claim.name] for claim in CLAIMS]
    raw = {"rows": rows, "products": products()}
    write(FOLDER, raw, report(raw))


def _row(claim: Claim) -> dict[str, Any]:
    began, figures = time.perf_counter(), dict[str, Any]()
    for each in claim.ask():
        figures |= each
        print(claim.name, each, flush=True)
    return claim.row(figures) | {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    main()
