"""Hold plans of two ranks under FSDP2 beside torch's own checkpoint, block by block as torchtitan has it.

python -m benchmarks.ranks.checkpointed peaks    # peaks, bits and collectives
python -m benchmarks.ranks.checkpointed seconds  # of the processor: nothing else may run meanwhile
python -m benchmarks.ranks.checkpointed lines    # the ways in which two ranks share a model, by three budgets each
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.environment import environment, table, write_parts
from tests.ranks.models import Shared
from tests.ranks.test_kept import WAYS
from tests.ranks.world import World

FOLDER = Path(__file__).with_suffix("")

EVERY = {"every block": 1, "every 2nd block": 2, "every 3rd block": 3}
ROUNDS = 24
SHARES = (0.8, 0.6, 0.4)
ITEM_BYTES = 4
"""Of what is gathered: parameters in single precision."""

UNEQUAL: dict[str, dict[str, Any]] = {
    "ddp with BatchNorm, unequal shapes": {"shared": Shared(by="ddp"), "norm": True, "lengths": (64, 48)},
}

Rows = dict[str, Any]


def peaks(world: World) -> Iterator[tuple[str, Any]]:
    for name, every in EVERY.items():
        yield name, world.run("benchmarks.ranks.beside", "peaks", every=every)


def seconds(world: World) -> Iterator[tuple[str, Any]]:
    file = FOLDER / "peaks.json"
    if not file.exists():
        raise SystemExit("the budgets are those that the part `peaks` has measured: run that first")
    measured = json.loads(file.read_text())["rows"]
    for name, every in EVERY.items():
        given = {"every": every, "budget": measured[name][0]["budget"], "rounds": ROUNDS}
        yield name, world.run("benchmarks.ranks.beside", "seconds", **given)


def lines(world: World) -> Iterator[tuple[str, Any]]:
    for way, given in (WAYS | UNEQUAL).items():
        for share in SHARES:
            yield f"{way}, {share:.0%}", _short(world.run("tests.ranks.works", "kept", share=share, **given))


def _short(ranks: list[Any]) -> list[Any]:
    """Keep of the collectives of each rank how many there were, and whether they are those of the others."""
    first, short = ranks[0], []
    for each in ranks if "log" in first else ():
        told = {"collectives": len(each["log"]), "alike": each["log"] == first["log"]}
        told["plain"] = each["log"] == each["plain_log"]
        short.append({name: value for name, value in each.items() if name not in ("log", "plain_log")} | told)
    return short or ranks


def show_peaks(rows: Rows) -> str:
    heads = ["step", "highest, MB", "of the plain one", "bits", "gathers a step", "MB gathered a step", "scatters"]
    cells = []
    for name, ranks in rows.items():
        ways = {"plain": "plain", "torch": f"torch, {name}", "autockpt": "autockpt, within that peak"}
        for way, said in ways.items():
            if way != "plain" or not cells:
                cells.append([said, *_measured([rank[way] for rank in ranks], _highest(ranks, "plain"))])
    return table(heads, cells)


def _measured(ranks: list[Any], plain_bytes: int) -> list[object]:
    gathered = [int(each.split()[1]) * ITEM_BYTES for each in ranks[0]["log"] if each.startswith("gather")]
    highest_bytes = max(max(each["peaks"]) for each in ranks)
    return [
        f"{highest_bytes / 1e6:.3f}",
        f"{highest_bytes / plain_bytes:.3f}",
        "differ" if any(each["differ"] for each in ranks) else "equal",
        len(gathered),
        f"{sum(gathered) / 1e6:.2f}",
        len(ranks[0]["log"]) - len(gathered),
    ]


def _highest(ranks: list[Any], way: str) -> int:
    return max(max(rank[way]["peaks"]) for rank in ranks)


def show_seconds(rows: Rows) -> str:
    heads = ["recomputed by torch", "plain step, ms", "torch, over plain", "autockpt, over plain", "autockpt / torch"]
    cells = []
    for name, ranks in rows.items():
        rounds = [{way: sum(each[way] for each in both) for way in both[0]} for both in zip(*ranks, strict=True)]
        plain = statistics.median(each["plain"] for each in rounds)
        ratios = [("torch", "plain"), ("autockpt", "plain"), ("autockpt", "torch")]
        cells.append([name, f"{plain * 1e3:.0f}", *(_ratio(rounds, *ratio) for ratio in ratios)])
    return table(heads, cells)


def _ratio(rounds: list[dict[str, float]], way: str, other: str) -> str:
    low, middle, high = statistics.quantiles([each[way] / each[other] for each in rounds], n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def show_lines(rows: Rows) -> str:
    heads = ["way, of what plain adds", "highest step / budget", "predicted, off by", "bits", "collectives", "segments"]
    planned = [ranks for ranks in rows.values() if "infeasible" not in ranks[0]]
    held = sum(max(each["peaks"]) <= each["budget"] for ranks in planned for each in ranks)
    exact = sum(not each["differ"] for ranks in planned for each in ranks)
    count = sum(map(len, planned))
    said = f"{len(rows)} rows, {len(planned)} with a plan: {held} of {count} ranks within it, {exact} bit for bit."
    return f"{said}\n\n{table(heads, ([name, *_line(ranks)] for name, ranks in rows.items()))}"


def _line(ranks: list[Any]) -> list[object]:
    if any("infeasible" in each for each in ranks):
        return ["no plan reaches it", "", "", "", ""]
    off = max((each["predicted"] / each["peaks"][-1] - 1 for each in ranks), key=abs)
    alike = all(each["alike"] for each in ranks)
    more = "the plain ones" if all(each["plain"] for each in ranks) else "and those of replays"
    return [
        f"{max(max(each['peaks']) / each['budget'] for each in ranks):.3f}",
        f"{off:.2%}",
        "differ" if any(each["differ"] for each in ranks) else "equal",
        f"{'alike' if alike else 'NOT ALIKE'}, {more}",
        " and ".join(map(str, dict.fromkeys(len(each["segments"]) for each in ranks))),
    ]


PARTS: dict[str, tuple[Callable[[World], Iterator[tuple[str, Any]]], Callable[[Rows], str]]] = {
    "peaks": (peaks, show_peaks),
    "seconds": (seconds, show_seconds),
    "lines": (lines, show_lines),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), choices=[*PARTS, []], metavar="PART")
    for part in parser.parse_args().parts or PARTS:
        run, show = PARTS[part]
        rows: Rows = {}
        world, where = World(Path(tempfile.mkdtemp())), environment()
        for name, row in run(world):
            rows[name] = row
            print(show({name: row}), flush=True)
            (FOLDER / f"{part}.json").write_text(json.dumps({"environment": where, "rows": rows}, indent=1) + "\n")
        world.close()
    write_parts(FOLDER, {part: show for part, (_, show) in PARTS.items()})


if __name__ == "__main__":
    main()
