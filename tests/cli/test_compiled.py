"""``autockpt explain`` of a plan of compiled code."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from autockpt import CompiledPlan
from tests.doors import JointGraph, cli_main

PLAN = CompiledPlan(
    model="Net",
    graphs=(JointGraph(signature="0", name="inner … outer", operators=8, again=(3, 5)),),
    peak_bytes=2 << 20,
    plain_peak_bytes=3 << 20,
    recompute_seconds=0.001,
    forward_seconds=0.01,
    modules=(("inner", 0.001),),
    tried_bytes=(4 << 20, 2 << 20),
)


def test_a_plan_of_compiled_code_is_explained(tmp_path: Path) -> None:
    PLAN.save(file := tmp_path / "plan.json")
    shown = CliRunner().invoke(cli_main, ["explain", str(file)])
    assert shown.exit_code == 0
    for words in ("compiled code of Net", "3.00 MiB where nothing runs", "10.0%", "tried: 4.00 MiB, then 2.00 MiB"):
        assert words in shown.output
    for option in (["--plot", str(tmp_path / "a.png")], ["--profile", "gpt2-xl"]):
        assert CliRunner().invoke(cli_main, ["explain", str(file), *option]).exit_code != 0
