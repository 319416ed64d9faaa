"""Have two ranks, or four, be given bad input, or have one of them fail; write down what each says.

python -m benchmarks.ranks            # all rows, ten minutes
python -m benchmarks.ranks interrupt  # those with this word, or of this name; the others stay
python -m benchmarks.ranks --missing  # those that results.json has not; the others stay
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.environment import environment, table, write
from tests.ranks.models import Shared
from tests.ranks.world import World

FOLDER = Path(__file__).parent

Row = tuple[str, str, dict[str, Any], int]
"""Its name, the function, what that is given, and how many ranks there are."""


def rows() -> Iterator[Row]:
    """Yield all rows."""
    ways = {by: Shared(by=by) for by in ("ddp", "fsdp", "tp", "sp")}
    loud = {by: Shared(by=by, quiet=False, seconds=10.0) for by in ways}
    for by, shared in ways.items():
        for what in ("budget", "version", "solver", "pins"):
            yield f"unequal: {what}, {by}", "bad.unequal", {"shared": shared, "what": what}, 2
        for which, what in enumerate(("as it plans", "as it is to take a plan")):
            given = {"shared": shared, "which": which}
            yield f"KeyboardInterrupt on rank {which} {what}, {by}", "bad.interrupted", given, 2
        if (
            by != "fsdp"
        ):  # whose units gather before the ranks agree: it would wait in that collective, as without a budget
            yield f"Ctrl-C on rank 1 while it waits, {by}", "bad.interrupted_in_a_wait", {"shared": shared}, 2
        yield f"apply on rank 0 only (timeout 3 s), {by}", "bad.absent", {"shared": shared}, 2
        for at in (0, 4):
            given = {"shared": loud[by], "at": at, "again": False}
            yield f"rank 1 raises in forward of step {at} and stops (timeout 10 s), {by}", "bad.raising", given, 2
        yield (
            f"rank 1 has no batch at the end (timeout 10 s), {by}",
            "bad.fewer",
            {"shared": loud[by], "joins": False},
            2,
        )
        given = {"shared": shared, "at": 4}
        yield f"the user's own collective times out (1 s) after step 4, {by}", "bad.timed_out", given, 2
        both = {"shared": shared, "plans": ("blocks", "blocks")}
        yield f"the same plan by hand on both, {by}", "bad_plans.given", both, 2
        for plans in (("blocks", "layers"), ("layers", "layers")):
            given = {"shared": loud[by], "plans": plans}
            yield f"plans by hand: {' and '.join(plans)}, {by}", "bad_plans.given", given, 2
    for at in (0, 1, 2, 4):
        given = {"shared": ways["ddp"], "at": at, "again": True}
        yield f"rank 1 raises in forward of step {at} and takes another sample, ddp", "bad.raising", given, 2
    other = ("blocks", "other blocks")
    unlike: list[tuple[str, tuple[str, str | None]]] = [("tp", other), ("sp", other), ("tp", ("blocks", None))]
    for by, hands in unlike:
        given = {"shared": ways[by], "plans": hands}
        yield f"plans by hand: {hands[0]} and {hands[1] or 'a budget'}, {by}", "bad_plans.given", given, 2
    for hands in (("two in one", "two in one"), ("two in one", "other two")):
        given = {"shared": ways["fsdp"], "plans": hands}
        yield f"plans by hand over two units: {hands[0]} and {hands[1]}, fsdp", "bad_plans.given", given, 2
    yield (
        "rank 1 has no batch at the end, with join(), ddp",
        "bad.fewer",
        {"shared": Shared(by="ddp", quiet=False), "joins": True},
        2,
    )
    for late in (False, True):
        yield (
            f"inputs= on rank 0 only, {'after' if late else 'before'} wrapping, ddp",
            "bad.given_a_batch",
            {"late": late},
            2,
        )
    yield "ddp around tp", "bad_plans.around_layers", {}, 2
    yield "groups that overlap without an order (2 s instead of 20), ddp", "bad_plans.crosswise", {}, 4
    for by, shared in ways.items():
        given = {"shared": shared, "steps": 100, "share": 0.6}
        yield f"100 steps of random sizes, {by}", "bad.random_sizes", given, 2


def show(found: dict[str, list[dict[str, Any]]]) -> str:
    """The summary, and a line a row and rank."""
    compared = [each for row in found.values() for each in row if "same" in each and not each["error"]]
    exact = sum(each["same"] for each in compared)
    heads = ["row", "rank", "says", "seconds", "steps", "bits", "highest step / budget"]
    lines = [
        [name if rank == 0 else "", rank, *_cells(each)] for name, row in found.items() for rank, each in enumerate(row)
    ]
    return f"{len(found)} rows; bit for bit the plain steps: {exact} of {len(compared)} ranks.\n\n{table(heads, lines)}"


def _cells(each: dict[str, Any]) -> list[object]:
    words = each["words"].replace("|", "/").replace("\n", " ")
    said = f"{each['error']}: {words[:160]}{'…' * (len(words) > 160)}" if each["error"] else "–"
    bits = {None: "", True: "equal", False: "differ"}[each.get("same") if not each["error"] else None]
    return [said, f"{each['seconds']:.1f}", each["steps"], bits, f"{each['held']:.3f}" if "held" in each else ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows with one of these words")
    parser.add_argument("--missing", action="store_true", help="only rows without a result")
    asked = parser.parse_args()
    file = FOLDER / "results.json"
    some = asked.words or asked.missing
    found = json.loads(file.read_text())["rows"] if some and file.exists() else {}
    there = set(found) if asked.missing else set()
    worlds: dict[int, World] = {}
    for name, function, given, ranks in rows():
        if name in there or (asked.words and not any(word in name for word in asked.words)):
            continue
        if ranks not in worlds or not worlds[ranks].alive:
            worlds[ranks] = World(Path(tempfile.mkdtemp()), ranks)
        module, _, own = function.partition(".")
        found[name] = worlds[ranks].run(f"tests.ranks.{module}", own, **given)
        print(show({name: found[name]}).partition("---")[2], flush=True)
        file.write_text(json.dumps({"environment": environment(), "rows": found}, indent=1) + "\n")
    for world in worlds.values():
        world.close()
    write(FOLDER, {"rows": found}, show(found))


if __name__ == "__main__":
    main()
