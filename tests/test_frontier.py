"""The frontier: from a profile to plans for every budget, as a file, and on the command line."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import autockpt
from autockpt import Frontier, Infeasible, InvalidFile, Plan, frontier, solve
from autockpt._candidates import find_candidates
from autockpt._cli import main
from autockpt._explain import explain_frontier
from autockpt.solvers import simulate

from .handmade import chain_profile

MIB = 2**20


@functools.lru_cache
def chain() -> Frontier:
    return frontier(chain_profile(), points=8)


def test_it_goes_from_plain_to_the_minimum() -> None:
    found = chain()
    profile = chain_profile()
    problem = find_candidates(profile).problem
    assert found.plans[0].segments == ()
    assert found.plain_peak_bytes == found.plans[0].peak_bytes == simulate(problem, ()).peak_bytes
    for above, below in pairwise(found.plans):
        assert above.peak_bytes > below.peak_bytes
        assert above.recompute_seconds <= below.recompute_seconds
    assert found.plans[1].recompute_seconds < found.plans[-1].recompute_seconds
    with pytest.raises(Infeasible) as caught:
        solve(profile, 1)
    assert found.minimum_bytes == found.plans[-1].peak_bytes == caught.value.minimum_bytes
    assert found.dominated_by == caught.value.dominated_by
    assert len(found.plans) == 3


def test_each_plan_is_what_solve_finds_for_its_peak() -> None:
    for plan in chain().plans:
        alone = solve(chain_profile(), plan.peak_bytes)
        assert plan.recompute_seconds == pytest.approx(alone.recompute_seconds, rel=1e-9)
        assert plan.status == alone.status == "optimal"
        assert plan.budget_bytes == plan.peak_bytes
        assert plan.refused == alone.refused
        assert plan.profile_mode == "real"


def test_within_picks_the_cheapest_that_fits() -> None:
    found = chain()
    for above, below in pairwise(found.plans):
        assert found.within(above.peak_bytes) is above
        assert found.within(above.peak_bytes - 1) is below
    assert found.within("1TB") is found.plans[0]
    assert found.within("50%", total_bytes=2 * found.minimum_bytes) is found.plans[-1]
    with pytest.raises(Infeasible) as caught:
        found.within(found.minimum_bytes - 1)
    assert caught.value.minimum_bytes == found.minimum_bytes
    assert caught.value.dominated_by in str(caught.value)
    assert caught.value.plan is found.plans[-1]
    with pytest.raises(autockpt.BudgetError):
        found.within("8 G B")


def test_budgets_that_are_asked_for_are_on_it() -> None:
    found = frontier(chain_profile(), budgets=["50MiB", 40 * MIB, 1, "1TB"])
    assert found.minimum_bytes == chain().minimum_bytes
    assert len(found.plans) == 4
    for budget in ("50MiB", 40 * MIB):
        alone = solve(chain_profile(), budget)
        assert found.within(budget).recompute_seconds == pytest.approx(alone.recompute_seconds, rel=1e-9)


def test_a_solver_that_cannot_lower_the_peak_leaves_the_plain_plan() -> None:
    found = frontier(chain_profile(), solver="none")
    assert len(found.plans) == 1
    assert found.minimum_bytes == found.plain_peak_bytes
    assert "minimum" in found.explain()


def test_bounds_hold_and_grow_with_the_bytes_that_are_freed(tmp_path: Path) -> None:
    """On a recorded step, whose operators are known; a plan from the frontier can be applied."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    block = [torch.nn.Linear(32, 128), torch.nn.GELU(), torch.nn.Linear(128, 32)]
    model = torch.nn.Sequential(*(torch.nn.Sequential(*block) for _ in range(3)))
    batch = torch.randn(256, 32)
    found = frontier(autockpt.profile(model, batch), points=4)
    bounds = [plan.lower_bound_seconds for plan in found.plans]
    known = [bound for bound in bounds if bound is not None]
    assert known == sorted(known)
    assert known[0] == 0.0 < known[-1]
    assert all(plan.gap is not None and 0.0 <= plan.gap <= 1.0 for plan in found.plans)
    plan = found.within(found.minimum_bytes)
    autockpt.apply(model, plan=plan)
    assert autockpt.plan_of(model) == plan
    model(batch).sum().backward()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"points": 1}, autockpt.BudgetError),
        ({"budgets": ["8 G B"]}, autockpt.BudgetError),
        ({"budgets": ["80%"]}, autockpt.BudgetError),
        ({"solver": "best"}, autockpt.UnknownSolver),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_misuse(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        frontier(chain_profile(), **options)


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    chain().save(path)
    assert Frontier.load(path) == chain()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidFile, match="not a valid"):
        Frontier.load(path)


def turned(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return plans[::-1]


def without_plain(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return plans[1:]


def dominated(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    seconds = plans[-1].recompute_seconds
    return (*plans[:-2], msgspec.structs.replace(plans[-2], recompute_seconds=seconds), plans[-1])


def equal_peaks(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return (*plans[:-1], msgspec.structs.replace(plans[-1], peak_bytes=plans[-2].peak_bytes))


def nothing(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    return ()


@pytest.mark.parametrize("wrong", [turned, without_plain, dominated, equal_peaks, nothing])
def test_a_file_that_contradicts_itself(wrong: Callable[[tuple[Plan, ...]], tuple[Plan, ...]], tmp_path: Path) -> None:
    document = msgspec.to_builtins(chain())
    document["plans"] = msgspec.to_builtins(wrong(chain().plans))
    path = tmp_path / "frontier.json"
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(InvalidFile, match="not a valid"):
        Frontier.load(path)


@pytest.mark.parametrize("schema", ["autockpt.frontier/9", "autockpt.plan/1"])
def test_a_file_of_another_schema(schema: str, tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(chain()) | {"schema": schema}))
    with pytest.raises(InvalidFile, match=schema):
        Frontier.load(path)


@pytest.mark.parametrize(("width", "columns"), [(60, 6), (80, 8), (100, 9)])
def test_the_text_fits_and_marks_the_minimum(width: int, columns: int) -> None:
    text = explain_frontier(chain(), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    header = next(line for line in text.splitlines() if line.startswith("plan "))
    told = ["plan", "peak", "of plain", "freed", "recompute", "of step", "gap", "segments", "solver"]
    assert sum(column in header for column in told) == columns
    rows = [line for line in text.splitlines() if line.startswith(("plain ", "minimum "))]
    assert [row.split()[0] for row in rows] == ["plain", "minimum"]
    assert f"{chain().minimum_bytes / MIB:.2f} MiB" in rows[-1]


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments], prog_name="autockpt")
        out, err = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Result(exit_.value.code, out, err)

    return call


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    chain_profile().save(path)
    return path


def test_the_command_prints_a_table(run: Run, profile_file: Path) -> None:
    result = run("frontier", profile_file, "--points", 8)
    assert (result.status, result.err) == (0, "")
    assert result.out == explain_frontier(chain())
    assert run("frontier", "-", "--points", 8, stdin=profile_file.read_bytes()) == result


def test_json_is_the_frontier_and_nothing_else(run: Run, profile_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "frontier.json"
    result = run("frontier", profile_file, "--budget", "50MiB", "--budget", "40MiB", "--json", "-o", output)
    assert result.status == 0
    assert result.err == f"wrote {output}\n"
    assert result.out == output.read_text()
    assert len(Frontier.load(output).plans) == 4


def test_a_frontier_can_be_explained(run: Run, profile_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "frontier.json"
    chain().save(path)
    assert run("explain", path).out == chain().explain()
    document = json.loads(run("explain", path, "--json").out)
    assert document["kind"] == "frontier"
    assert document["predicted_minimum_bytes"] == document["rows"][-1]["peak_bytes"] == chain().minimum_bytes
    assert run("explain", path, "--budget", "80MiB").out == chain().within("80MiB").explain()
    below = run("explain", path, "--budget", chain().minimum_bytes - 1, "--json")
    assert below.status == 1
    assert json.loads(below.out)["minimum_bytes"] == chain().minimum_bytes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--points", "1"], "--points"),
        (["--solver", "best"], "there are all, "),
        (["--budget", "8 G B"], "8 G B"),
        (["--time-limit", "0"], "--time-limit"),
        (["-o", "missing/frontier.json"], "missing/frontier.json"),
    ],
)
def test_misused(run: Run, profile_file: Path, arguments: list[str], words: str) -> None:
    result = run("frontier", profile_file, *arguments)
    assert (result.status, result.out) == (2, "")
    assert words in result.err.splitlines()[-1]


@pytest.mark.parametrize("contents", [b"", b'{"schema": "autockpt.plan/1"}'], ids=["empty", "a plan"])
def test_a_file_that_is_no_profile(run: Run, tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(contents)
    result = run("frontier", path)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"Error: {path}")
    assert result.err.count("\n") == 1


def test_it_imports_no_torch(profile_file: Path) -> None:
    arguments = ["frontier", str(profile_file), "--points", "3"]
    code = (
        "import sys\n"
        "from autockpt._cli import main\n"
        f"status = main({arguments!r}, standalone_mode=False)\n"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
