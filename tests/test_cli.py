"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from autockpt import Plan, Profile, Refusal, Segment
from autockpt._cli import main
from autockpt._cli.common import progress
from autockpt._explain import explain_plan, explain_profile

from .handmade import chain_profile

MIB = 2**20


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process; what it does to the module path is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))

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


def test_solve_prints_the_plan(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "80MiB")
    assert result.status == 0
    assert result.err == ""
    assert result.out.startswith("Plan for Chain, by ")
    assert "predicted peak" in result.out


def test_solve_json_is_the_plan_and_nothing_else(run: Run, profile_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    result = run("solve", profile_file, "--budget", "80MiB", "--json", "-o", output)
    assert result.status == 0
    assert result.err == f"wrote {output}\n"
    assert result.out == output.read_text()
    plan = Plan.load(output)
    assert 0 < plan.peak_bytes <= 80 * MIB == plan.budget_bytes
    assert plan.segments
    assert all(call != "h.1.attn#0" for segment in plan.segments for call in segment.calls)


def test_pins_may_be_given_several_times(run: Run, profile_file: Path, tmp_path: Path) -> None:
    pins = ("--keep", "h.0", "--keep", "*.3.attn", "--recompute", "h.2.*")
    result = run("solve", profile_file, "--budget", "80MiB", *pins, "-o", tmp_path / "plan.json")
    assert result.status == 0
    assert "Pinned: keep [h.0, *.3.attn]; recompute [h.2.*]" in result.out
    plan = Plan.load(tmp_path / "plan.json")
    assert (plan.pinned_keep, plan.pinned_recompute) == (("h.0", "*.3.attn"), ("h.2.*",))


def test_a_pin_that_matches_nothing_is_misuse(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "80MiB", "--keep", "h.0.attm")
    assert result.status == 2
    assert "'h.0.attm'; the nearest names are" in result.err
    assert result.out == ""


def test_where_pins_leave_no_plan_both_minima_are_told(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "60MiB", "--keep", "*.mlp", "--json")
    assert result.status == 1
    document = json.loads(result.out)
    assert document["unpinned_minimum_bytes"] < document["minimum_bytes"]
    assert f"{document['unpinned_minimum_bytes']:,} bytes" in result.err
    plan = msgspec.convert(document["plan"], Plan)
    assert plan.peak_bytes == document["minimum_bytes"]
    assert plan.pinned_keep == ("*.mlp",)
    assert all("mlp" not in call and call.count(".") == 2 for each in plan.segments for call in each.calls)


def test_profile_and_plan_can_come_from_stdin(run: Run, profile_file: Path) -> None:
    plan = run("solve", "-", "--budget", "80MiB", "--json", stdin=profile_file.read_bytes())
    assert plan.status == 0
    explained = run("explain", "-", stdin=plan.out.encode())
    assert explained.status == 0
    assert explained.out == run("solve", profile_file, "--budget", "80MiB").out


def test_solve_infeasible(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "6MiB", "--json")
    assert result.status == 1
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1
    document = json.loads(result.out)
    assert document["status"] == "infeasible"
    assert document["minimum_bytes"] > document["budget_bytes"] == 6 * MIB
    plan = msgspec.convert(document["plan"], Plan)
    assert plan.segments and plan.peak_bytes == plan.budget_bytes == document["minimum_bytes"]
    assert run("solve", profile_file, "--budget", document["minimum_bytes"]).status == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "8 G B"], "8 G B"),
        (["--budget=-1"], "-1"),
        (["--budget", "120%"], "120%"),
        (["--budget", "80MiB", "--solver", "best"], "there are all, "),
        (["--budget", "80MiB", "--time-limit", "0"], "--time-limit"),
        (["--budget", "80MiB", "-o", "missing/plan.json"], "missing/plan.json"),
        ([], "--budget"),
    ],
)
def test_solve_misused(run: Run, profile_file: Path, arguments: list[str], words: str) -> None:
    result = run("solve", profile_file, *arguments)
    assert result.status == 2
    assert result.out == ""
    assert words in result.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "not a valid"),
        (b'{"schema": "autockpt.profile/2", "model": ', "not a valid"),
        (b'{"schema": "autockpt.profile/9"}', "autockpt.profile/9"),
        (b'{"schema": "autockpt.plan/1", "surprise": 1}', "surprise"),
        (b"\xff\xfe", "not a valid"),
    ],
    ids=["empty", "truncated", "other schema", "unknown field", "not text"],
)
@pytest.mark.parametrize("command", [["explain"], ["solve", "--budget", "1GiB"]], ids=["explain", "solve"])
def test_files_that_are_not_valid(run: Run, tmp_path: Path, command: list[str], contents: bytes, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(contents)
    result = run(*command, path)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith(f"Error: {path}")
    assert result.err.count("\n") == 1
    assert words in result.err or command[0] == "solve"


def test_a_file_that_is_missing(run: Run) -> None:
    result = run("explain", "missing.json")
    assert result.status == 2
    assert "missing.json" in result.err


def test_explain_a_profile(run: Run, profile_file: Path) -> None:
    text = run("explain", profile_file)
    assert text.status == 0
    assert text.out == Profile.load(profile_file).explain()
    assert "h.0 … h.3" in text.out
    document = json.loads(run("explain", profile_file, "--json").out)
    assert document["kind"] == "profile"
    assert document["activation_bytes"] == 4 * (8 + 16 + 2 + 2) * MIB
    assert [row["calls"] for row in document["modules"]] == [1, 4, 4, 4]


def test_explain_a_profile_for_a_budget(run: Run, profile_file: Path) -> None:
    assert run("explain", profile_file, "--budget", "80MiB").out == run("solve", profile_file, "--budget", "80MiB").out
    document = json.loads(run("explain", profile_file, "--budget", "80MiB", "--json").out)
    assert document["kind"] == "plan"
    assert document["predicted_peak_bytes"] <= 80 * MIB


def test_explain_refuses_a_budget_for_a_plan(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan.of(["h.0"]).save(path)
    assert run("explain", path, "--budget", "1GiB").status == 2


def test_the_text_of_a_selective_segment() -> None:
    segments = [
        Segment(
            calls=(f"h.{i}#0",),
            keep=(f"h.{i}.attn#0/scaled_dot_product_attention#0", f"h.{i}.mlp.up#0"),
            skip=(f"h.{i}.mlp.down#0",),
            freed_bytes=8 * MIB,
            boundary_bytes=MIB,
            kept_bytes=3 * MIB,
            recompute_seconds=0.001,
        )
        for i in range(2)
    ]
    assert explain_plan(Plan(segments=tuple(segments))).split("\n\n")[-1] == (
        "In h.{0-1} 3.00 MiB are kept instead of being computed again; keep\n"
        "[attn/scaled_dot_product_attention#0, mlp.up]; skip [mlp.down]\n"
    )


def test_the_text_of_a_plan() -> None:
    equal = {"freed_bytes": 17 * MIB, "boundary_bytes": MIB, "recompute_seconds": 0.004}
    run_of_three = tuple(f"decoder.h.{i}#0" for i in range(3))
    plan = Plan(
        model="GPT2LMHeadModel",
        segments=(
            Segment(calls=run_of_three, freed_bytes=50 * MIB, boundary_bytes=3 * MIB, recompute_seconds=0.012),
            *(Segment(calls=(f"decoder.h.{i}#0",), **equal) for i in range(3, 8)),  # type: ignore[arg-type]
            Segment(calls=("decoder.ln#1",), **equal),  # type: ignore[arg-type]
        ),
        solver="ilp",
        status="feasible",
        budget_bytes=400 * MIB,
        peak_bytes=399 * MIB,
        plain_peak_bytes=800 * MIB,
        recompute_seconds=0.05,
        plain_seconds=1.25,
        lower_bound_seconds=0.03,
        choice_bound_seconds=0.045,
        profile_mode="real",
        refused=tuple(Refusal(call=f"h.{i}.attn#0", reason="reads a tensor from a closure") for i in range(9)),
        notes=("a note",),
    )
    assert explain_plan(plan) == textwrap.dedent(
        """\
        Plan for GPT2LMHeadModel, by ilp, feasible (no other choice saves more than 10.0% of it)

        budget                        400.00 MiB
        predicted peak                399.00 MiB  99.8% of the budget
        predicted plain peak          800.00 MiB
        predicted recompute                50 ms  per step
        predicted recompute overhead        4.0%  of the plain step, 1.25 s as recorded
        least by any method                30 ms  operator by operator, the host's time not counted
        profile                             real  a whole step ran

        Recomputed: 7 segments of 9 calls together; figures of each segment, as predicted
        segments  calls                  freed  boundary  seconds
        ---------------------------------------------------------
               1  decoder.h.0 … h.2  50.00 MiB  3.00 MiB    12 ms
               5  decoder.h.{3-7}    17.00 MiB  1.00 MiB     4 ms
               1  decoder.ln#1       17.00 MiB  1.00 MiB     4 ms

        Kept because they cannot be replayed exactly
          9 calls: reads a tensor from a closure
            h.0.attn, h.1.attn, h.2.attn, h.3.attn, h.4.attn, h.5.attn, and 3 more

        Notes
          a note
        """
    )


def test_segments_that_differ_by_layer_share_a_row() -> None:
    runs = [[f"h.{i}.ln", f"h.{i}.mlp"] for i in (1, 3, 4, 5, 9)]
    text = Plan.of([*runs, ["e.0", "e.1"], "conv", "f.3#1", ""]).explain()
    assert [line.split("  ")[-1] for line in text.splitlines()[5:]] == [
        "h.{1, 3-5, 9}.ln … mlp",
        "e.0 … e.1",
        "conv",
        "f.3#1",
        "the whole model",
    ]


def test_the_text_fits_sixty_columns() -> None:
    note = "a note that is long enough to need more than the sixty columns there are, and more"
    deep = "encoder.layers.{}.self_attention.output.dense_projection.dropout"
    plan = Plan(
        segments=tuple(Segment(calls=(f"{deep.format(i)}#0",), freed_bytes=MIB * i) for i in range(4)),
        budget_bytes=400 * MIB,
        peak_bytes=399 * MIB,
        status="optimal",
        solver="articulation",
        plain_seconds=1.0,
        profile_mode="forward",
        refused=(Refusal(call=f"{deep.format(7)}#0", reason=note),),
        notes=(note,),
    )
    for text in (explain_plan(plan, width=60), explain_profile(chain_profile(notes=(note,)), width=60)):
        assert max(len(line) for line in text.splitlines()) <= 60


MODELS = """
    import torch

    def tiny():
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
        return model, torch.randn(32, 64)

    def lonely():
        return torch.nn.Linear(2, 2)

    def broken():
        raise RuntimeError("no\\nluck")

    def frozen():
        return torch.nn.Linear(2, 2).requires_grad_(False), torch.randn(2, 2)

    constant = 7
"""


@pytest.fixture
def models_file(tmp_path: Path) -> Path:
    path = tmp_path / "some_models.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


def test_profile_a_function_of_a_file(run: Run, models_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "tiny.json"
    text = run("profile", f"{models_file}:tiny", "-o", output)
    assert text.status == 0
    assert text.out.startswith("Profile of Sequential, ")
    assert text.err == f"wrote {output}\n"
    assert Profile.load(output).model == "Sequential"
    document = run("profile", f"{models_file}:tiny", "--mode", "real", "--json")
    assert json.loads(document.out)["schema"] == Profile.SCHEMA
    assert document.err == ""


def test_profile_a_function_of_a_module(
    run: Run, models_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_package").mkdir()
    models_file.rename(tmp_path / "some_package" / "zoo.py")
    monkeypatch.chdir(tmp_path)
    assert run("profile", "some_package.zoo:tiny").status == 0


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ("{file}", 2, "names no function"),
        ("{file}:missing", 2, "has no function 'missing'"),
        ("{file}:constant", 2, "it is one int"),
        ("{file}:lonely", 2, "it returned one Linear"),
        ("{file}:broken", 2, "RuntimeError: no luck (some_models.py, line 12)"),
        ("{file}:frozen", 1, "no parameter that requires a gradient"),
        ("missing.py:tiny", 2, "no such file"),
        ("missing.module:tiny", 2, "No module named 'missing'"),
    ],
)
def test_profile_of_a_wrong_target(run: Run, models_file: Path, target: str, status: int, words: str) -> None:
    result = run("profile", target.format(file=models_file))
    assert (result.status, result.out) == (status, "")
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1
    assert words in result.err


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the demo's model; half of the peak stays within reach."""
    from autockpt import _demo

    sizes = {"LAYERS": 4, "WIDTH": 64, "HEADS": 2, "VOCABULARY": 64, "BATCH": 4, "TOKENS": 64, "STEPS": 2, "PAIRS": 1}
    for name, size in sizes.items():
        monkeypatch.setattr(_demo, name, size)


@pytest.mark.usefixtures("small_demo")
def test_demo(run: Run) -> None:
    from autockpt._demo import DemoReport, demo_text

    result = run("demo", "--json")
    assert (result.status, result.err) == (0, "")
    report = msgspec.json.decode(result.out, type=DemoReport)
    assert 0 < report.measured_peak_bytes <= report.budget_bytes
    assert report.replays == report.segments > 0
    assert report.largest_gradient_difference == report.largest_weight_difference == 0
    text = demo_text(report, width=80)
    assert text.endswith("Inside the budget, and the same training bit for bit.\n")
    assert "predicted peak" in text
    assert "measured peak" in text


@pytest.mark.usefixtures("small_demo")
def test_demo_fails_where_gradients_differ(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from autockpt import _demo

    monkeypatch.setattr(_demo, "apply", lambda model, **_: model.eval())  # no dropout: other gradients, and no plan
    monkeypatch.setattr(_demo, "remove", lambda model: model.train())
    monkeypatch.setattr(_demo, "plan_of", lambda model: Plan.of([]))
    result = run("demo")
    assert result.status == 1
    assert "differ from those of the plain steps" in result.err


def test_demo_without_transformers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = run("demo")
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("Error: ")
    assert result.err.endswith("pip install transformers\n")


def test_help_and_version(run: Run) -> None:
    assert run("--version").out.startswith("autockpt ")
    assert "Exit status" in run("-h").out


def test_solve_and_explain_import_no_torch(profile_file: Path) -> None:
    for arguments in (["solve", str(profile_file), "--budget", "80MiB"], ["explain", str(profile_file)]):
        code = (
            "import sys\n"
            "from autockpt._cli import main\n"
            f"status = main({arguments!r}, standalone_mode=False)\n"
            "sys.exit(status or 'torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_once_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(stderr: io.StringIO, *, patience_seconds: float, seconds: float) -> str:
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress("solving", patience_seconds=patience_seconds):
            time.sleep(seconds)
        return stderr.getvalue()

    lasting = shown(_Terminal(), patience_seconds=0.01, seconds=0.2)
    assert lasting.startswith("\rsolving … 0 s")
    assert lasting.endswith("\r")
    assert "\x1b" not in lasting
    assert shown(_Terminal(), patience_seconds=60, seconds=0) == ""
    assert shown(io.StringIO(), patience_seconds=0.01, seconds=0.1) == ""
