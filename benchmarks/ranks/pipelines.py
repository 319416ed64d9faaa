"""Have the stages of pipelines on two ranks train under budgets, and hold each step against its prediction.

python -m benchmarks.ranks.pipelines         # all rows, fifteen minutes
python -m benchmarks.ranks.pipelines gpipe   # those with this word; the others stay
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autockpt
from benchmarks.environment import table, write_page
from tests.ranks.pipelines import SCHEDULES, kept
from tests.ranks.world import World

FILE, PAGE = Path(__file__).with_suffix(".json"), Path(__file__).with_suffix(".md")
SHARES = (0.8, 0.6, 0.4)
PARTS = 4
"""Microbatches in a step."""


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each row, and what it is given. Where FSDP2 shards stages, two ranks have each."""
    for schedule in SCHEDULES:
        for share in SHARES:
            yield f"{schedule}, {share:.0%}", {"schedule": schedule, "parts": PARTS, "share": share}
    torchs = {"recompute": [f"blocks.*#{part}" for part in range(PARTS - 1)], "keep": f"*#{PARTS - 1}"}
    always = {"recompute": "blocks.*"}
    for name, pins in (("except_last", torchs), ("always", always)):
        yield (
            f"gpipe, {SHARES[0]:.0%}, {name} by pins",
            {"schedule": "gpipe", "parts": PARTS, "share": SHARES[0], **pins},
        )
    for schedule in SCHEDULES:
        for share in SHARES[:2]:
            given = {"schedule": schedule, "parts": PARTS, "share": share, "sharded": True}
            yield f"{schedule}, {share:.0%}, FSDP2", given


def row(rank: int, **given: Any) -> dict[str, Any]:
    """Train one rank's stages plainly and under a budget; where no plan reaches it all ranks say so."""
    try:
        return kept(rank, **given)
    except autockpt.Infeasible as error:
        return {"lowest": error.minimum_bytes, "words": str(error)}


def show(found: dict[str, list[dict[str, Any]]]) -> str:
    """The summary, and a line a row and rank."""
    every = [each for ranks in found.values() for each in ranks if "held" in each]
    within = sum(max(each["held"]) <= each["budget"] for each in every)
    exact = sum(each["same"] for each in every)
    worst = max(abs(_error(each)) for each in every)
    heads = [
        "schedule and budget",
        "rank",
        "plain step, MB",
        "budget, MB",
        "highest step / budget",
        "predicted / measured",
    ]
    heads += ["recomputed, of forward and backward", "of microbatches", "bits"]
    lines = [
        [name if rank == 0 else "", rank, *_cells(each)]
        for name, ranks in found.items()
        for rank, each in enumerate(ranks)
    ]
    return (
        f"{len(found)} rows; of {len(every)} ranks with a plan {within} were within their budgets in every step, "
        f"{exact} bit for bit the plain training; predictions were off by at most {worst:.2%}.\n\n"
        f"{table(heads, lines)}"
    )


def _error(each: dict[str, Any]) -> float:
    return float(each["predicted"][-1][0] / each["held"][-1] - 1)


def _cells(each: dict[str, Any]) -> list[object]:
    if "held" not in each:
        return ["", "", f"no plan: {each['words'].partition(chr(10))[0]}", "", "", "", ""]
    return [
        f"{each['plain'][-1] / 1e6:.2f}",
        f"{each['budget'] / 1e6:.2f}",
        f"{max(each['held']) / each['budget']:.4f}",
        f"{1 + _error(each):.4f}",
        f"{each['overhead']:.1%}",
        ", ".join(map(str, each["microbatches"])) or "–",
        "equal" if each["same"] else "differ",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows with one of these words")
    words = parser.parse_args().words
    found = json.loads(FILE.read_text())["rows"] if words and FILE.exists() else {}
    worlds = {ranks: World(Path(tempfile.mkdtemp()), ranks) for ranks in (2, 4)}
    for name, given in rows():
        if words and not any(word in name for word in words):
            continue
        world = worlds[4 if "sharded" in given else 2]
        found[name] = world.run("benchmarks.ranks.pipelines", "row", **given)
        print(name, *found[name], sep="\n  ", flush=True)
        write_page(PAGE, FILE, {"rows": found}, show(found))
    for world in worlds.values():
        world.close()


if __name__ == "__main__":
    main()
