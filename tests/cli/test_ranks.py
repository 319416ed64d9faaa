"""`--ranks`: planning for one rank of several, from one process."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.cli.shell import Run

BUILD = """
    import torch
    from torch.distributed.fsdp import fully_shard

    def plain():
        block = lambda: torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))
        model = torch.nn.Sequential(*(block() for _ in range(6)), torch.nn.Tanh()).to("meta")
        return model, torch.empty(500_000, 1024, device="meta")

    def sharded():
        model, batch = plain()
        for block in list(model)[:-1]:
            fully_shard(block)
        fully_shard(model)
        return model, batch

    def replicated():
        return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8)), torch.empty(4, 8)

    def failing():
        raise RuntimeError(f"no more than {torch.distributed.get_world_size() - 1} ranks")
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(BUILD))
    return str(path)


def test_fit_says_what_each_rank_holds(run: Run, train: str) -> None:
    result = run("fit", f"{train}:sharded", "--gpu", "h100", "--ranks", "8", "--optimizer", "adamw")
    assert (result.status, result.err) == (0, "")
    assert "one rank of 8 (FSDP2)" in " ".join(result.out.split())
    rows = dict(line.rsplit("  ", 1) for line in result.out.splitlines() if "iB" in line and "  " in line)
    assert "Microbatches are not looked at on several ranks" in " ".join(result.out.split())
    assert {"whole weights, at most", "whole gradients, at most"} <= {name.strip() for name in rows}
    assert max(map(len, result.out.splitlines())) <= 80


def test_fit_shards_what_shards_nothing(run: Run, train: str) -> None:
    asked = ("--gpu", "rtx4090", "--ranks", "8", "--json")
    whole, ours, theirs = (
        json.loads(run("fit", f"{train}:{name}", *asked, *more).out)["rank"]
        for name, more in (("plain", ()), ("plain", ("--shard", "fsdp2")), ("sharded", ()))
    )
    assert (whole["way"], ours["way"], ours["ranks"]) == ("whole", "fsdp2", 8)
    assert ours == theirs and whole["predicted_parameter_bytes"] == 8 * ours["predicted_parameter_bytes"]
    told = run("fit", f"{train}:plain", *asked[:-1]).out
    assert "Each rank holds the whole model" in told and "--shard fsdp2" in told


def test_plans_are_those_of_one_rank(run: Run, train: str, tmp_path: Path) -> None:
    plan, profile = tmp_path / "plan.json", tmp_path / "rank.json"
    result = run("solve", f"{train}:sharded", "--ranks", "4", "--budget", "min", "-o", str(plan))
    assert result.status == 0 and "one rank of 4 (FSDP2)" in result.out and "measured runs a step" not in result.out
    assert run("profile", f"{train}:sharded", "--ranks", "4", "-o", str(profile)).status == 0
    assert json.loads(profile.read_text())["world"]["ranks"] == 4
    assert "--ranks 4" in run("frontier", f"{train}:sharded", "--ranks", "4", "--points", "3", "--seconds", "1").out
    assert "one rank of 4 (FSDP2)" in run("explain", f"{train}:sharded", "--ranks", "4").out


def test_a_build_that_fails_says_how_it_was_called(run: Run, train: str) -> None:
    result = run("fit", f"{train}:failing", "--ranks", "8")
    assert result.status == 2
    assert "raised RuntimeError: no more than 7 ranks. It ran as rank 0 of 8" in result.err


def test_replicas_cannot_be_sharded_too(run: Run, train: str) -> None:
    """The flag was passed over in silence."""
    result = run("fit", f"{train}:replicated", "--ranks", "2", "--shard", "fsdp2")
    assert result.status != 0 and "DistributedDataParallel, whose ranks each hold all of it" in " ".join(
        result.err.split()
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fit", "gpt2-xl", "--ranks", "8"), "--ranks goes with file.py:function"),
        (("solve", "gpt2-xl", "--budget", "min", "--ranks", "8"), "--ranks goes with file.py:function"),
        (("fit", "train.py:plain", "--shard", "fsdp2"), "--shard goes with --ranks"),
        (("fit", "train.py:plain", "--ranks", "0"), "0 is not in the range"),
        (("profile", "train.py:plain", "--ranks", "2", "--mode", "measured"), "--ranks goes with --mode fake"),
    ],
)
def test_usage(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert result.status == 2 and words in result.err
