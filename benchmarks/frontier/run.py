"""Run autockpt and its peers on the same models, and write down what each costs at which peak.

Every method gets a model of its own that stands beside a plain one; both step in turns while they are timed. Peak,
gradients and FLOPs come from runs of their own. Results are written after each model, and a run for some models
replaces only theirs.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import with_steady_allocator
from benchmarks.frontier.measure import Outcome, Peak, compare, count_flops, outcome, peak, times
from benchmarks.frontier.methods import Applied, Method, NotHere
from benchmarks.frontier.ours import OURS, ours
from benchmarks.frontier.peers import COMPILED, peers
from benchmarks.frontier.report import write_report
from benchmarks.frontier.store import load, store
from benchmarks.models import SIZES, SMALL, Size, build
from tests.end_to_end.reference import counting_replays
from tests.zoo import Case

FOLDER = Path(__file__).parent
TIMING: dict[Size, tuple[float, int]] = {"small": (25.0, 15), "large": (60.0, 7), "gpu": (8.0, 9)}
"""For how many seconds a method is timed, and over how many pairs at least. Three seconds gave overheads of the small
models no better than to 3 points of a step."""
QUICK_TIMING = 0.0, 3
ON_GPU = ("plain", "transformers", "uniform", "block", COMPILED)
"""The peers there: the others are given a CPU's roofline, or are for sequences."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(SMALL), metavar="NAME", help="only these")
    parser.add_argument(
        "--size", choices=list(SIZES), default="small", help="of the models; all but small: transformers"
    )
    parser.add_argument("--ours", action="store_true", help="the plain step and autockpt; other rows stay as they are")
    parser.add_argument("--beside", nargs="+", default=[], metavar="FAMILY", help="with --ours: these peers, too")
    parser.add_argument("--quick", action="store_true", help="a few pairs of steps for each time: for trying out")
    parser.add_argument("--report", action="store_true", help="run nothing; write README and plots again")
    arguments = parser.parse_args()
    if arguments.report:
        write_report(FOLDER)
        return
    size: Size = arguments.size
    known, families = SIZES[size], {method.family for method in peers()}
    if arguments.beside and not (arguments.ours and families >= set(arguments.beside)):
        parser.error(f"--beside goes with --ours, and names some of {', '.join(sorted(families))}")
    names = arguments.model or list(known)
    if not known.keys() >= set(names):
        parser.error(f"these have that size: {', '.join(known)}")
    if size == "gpu" and not torch.cuda.is_available():
        parser.error("that size needs a CUDA device")
    unknown = set(names) - load(FOLDER, size).keys()
    if arguments.ours and unknown:
        parser.error(f"there are no rows of peers for {', '.join(sorted(unknown))}: run all methods first")
    with_steady_allocator()
    torch.set_num_threads(1)
    for name in names:
        wanted = ("plain", *arguments.beside) if arguments.ours else ON_GPU if size == "gpu" else None
        others = [method for method in peers() if wanted is None or method.family in wanted]
        rows = run_model(name, [*others, *ours()], size, quick=arguments.quick)
        store(FOLDER, name, rows, size, again=arguments.ours)
        write_report(FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A model twice, and what its plain step is known to do.

    Attributes:
        plain: the case that nothing is ever applied to.
        subject: the case that methods are applied to.
        state: what every compared step starts from.
        outcome: of the plain step.
        peak: of the plain step.
        flops: of the plain step.
        seconds: how long to time a method.
        least_pairs: at least so many pairs.
    """

    plain: Case
    subject: Case
    state: dict[str, torch.Tensor]
    outcome: Outcome
    peak: Peak
    flops: int
    seconds: float
    least_pairs: int


def run_model(name: str, methods: Iterable[Method], size: Size, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for every method and setting."""
    bench = prepare(name, size, quick=quick)
    rows = []
    for method in methods:
        row = run_method(bench, method)
        if peak(bench.subject) != bench.peak:
            row["failure"] = "left the model changed: its plain step has another peak"
            bench = prepare(name, size, quick=quick)
        rows.append(row)
        print(name, method.family, method.setting, row.get("error") or _short(row), flush=True)
    return rows


def prepare(name: str, size: Size, *, quick: bool) -> Bench:
    """Build the model twice and measure its plain step."""
    plain, subject = build(name, size), build(name, size)
    for case in (plain, subject):
        case.step()  # what is allocated once is allocated now
    state = copy.deepcopy(subject.model.state_dict())
    seconds, least_pairs = QUICK_TIMING if quick else TIMING[size]
    return Bench(
        plain=plain,
        subject=subject,
        state=state,
        outcome=outcome(subject, subject.model, state),
        peak=peak(subject),
        flops=count_flops(subject),
        seconds=seconds,
        least_pairs=least_pairs,
    )


def run_method(bench: Bench, method: Method) -> dict[str, Any]:
    """Apply, measure, take off; a method that fails says how in its row."""
    row: dict[str, Any] = {"family": method.family, "setting": method.setting}
    try:
        with method.apply(bench.subject) as applied:
            row |= measure_method(bench, method, applied)
    except NotHere as error:
        row["error"] = str(error)
    except Exception as error:  # whatever a peer dies of is a result
        row["error"] = _first_line(error)
    bench.subject.model.zero_grad()
    bench.subject.model.load_state_dict(bench.state)
    return row


def measure_method(bench: Bench, method: Method, applied: Applied) -> dict[str, Any]:
    """Measure a method at work."""
    case = applied.case
    with counting_replays() as replays:
        case.step()
    stood = peak(case)
    timed = times(bench.plain, case, seconds=bench.seconds, least_pairs=bench.least_pairs)
    agreement = compare(bench.outcome, outcome(case, bench.subject.model, bench.state))
    row: dict[str, Any] = {
        **applied.facts,
        "activation_bytes": stood.activation_bytes,
        "step_bytes": stood.step_bytes,
        "peak_ratio": stood.activation_bytes / bench.peak.activation_bytes,
        "flops_ratio": count_flops(case) / bench.flops,  # last: a dispatch mode may send compiled code to eager
        "time": dataclasses.asdict(timed),
        **dataclasses.asdict(agreement),
    }
    if method.family == OURS:
        row |= {"replays": len(replays), "freed_bytes": bench.peak.activation_bytes - stood.activation_bytes}
        if not replays or row["freed_bytes"] <= 0:
            row["failure"] = "no replays" if not replays else "no bytes freed"
    if "asked_bytes" in applied.facts:
        row["met"] = stood.step_bytes <= applied.facts["asked_bytes"]
    elif method.asked is not None:
        row["asked_ratio"] = method.asked
    if "asked_ratio" in row:
        row["met"] = row["peak_ratio"] <= row["asked_ratio"]
    return row


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]


def _short(row: dict[str, Any]) -> str:
    return (
        f"{row['peak_ratio']:.3f} time {row['time']['ratio']:.3f} flops {row['flops_ratio']:.3f} {row['gradients']}"
        f" {row['gradient_error']:.1e} buffers {row['buffers']} planned {row.get('planning_seconds', 0):.1f} s"
        f" predicted {row.get('predicted_overhead', 0):.3f} {row.get('failure', '')}"
    )


if __name__ == "__main__":
    main()
