"""Errors at the public door: short, in the user's words, and without the frames inside."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

import autockpt
from autockpt import Infeasible, PinError, Plan
from tests.toys.told import Told

BATCH = torch.randn(256, 64)


def computes(own: Told, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(own.mlp(torch.tanh(own.attn(x))))


def block(act: Callable[[Told, torch.Tensor], torch.Tensor] = computes) -> Told:
    return Told(act, attn=torch.nn.Linear(64, 64), mlp=torch.nn.Linear(64, 64))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(block() for _ in range(4)))


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if "autockpt" in frame.filename]


def test_infeasible_is_six_short_lines_in_the_users_unit() -> None:
    with pytest.raises(Infeasible) as caught:
        autockpt.apply(model(), "120KB", inputs=BATCH)
    lines = str(caught.value).splitlines()
    assert 4 <= len(lines) <= 6 and max(map(len, lines)) < 130
    assert lines[0].startswith("budget 120KB: the lowest peak that can be reached is ") and lines[0].endswith(" KB")
    assert lines[1].startswith("  there stand ") and lines[1].count("%") == 3
    assert lines[2].startswith("  Ask for budget='")
    assert lines[-1] == "  The model is as it was, and training can go on."
    enough = lines[2].split("'")[1]
    assert autockpt.plan_of(autockpt.apply(model(), enough, inputs=BATCH)) is not None


def test_what_it_says_is_enough_is_hardly_more() -> None:
    with pytest.raises(Infeasible) as caught:
        autockpt.apply(model(), "120KiB", inputs=BATCH)
    line = str(caught.value).splitlines()[2]
    one_level = caught.value.one_level or caught.value.plan
    least = [one_level.peak_bytes, *([] if caught.value.one_level is None else [caught.value.minimum_bytes])]
    for quoted, minimum_bytes in zip(line.split("'")[1::2], least, strict=False):
        assert minimum_bytes <= autockpt.solvers.parse_bytes(quoted) <= 1.01 * minimum_bytes


def test_each_budget_that_is_advised_has_its_price() -> None:
    """What was advised ran at up to +439 %, and nobody was told."""
    profile = msgspec.structs.replace(autockpt.profile(model(), BATCH), plain_seconds=1.0)
    with pytest.raises(Infeasible) as caught:
        autockpt.solve(profile, "120KB")
    error = caught.value
    line = str(error).splitlines()[2]
    assert line.rstrip(".").endswith(f"{error.plan.recompute_overhead:.0%} slower")
    if error.one_level is not None:
        assert error.one_level.peak_bytes > error.minimum_bytes == error.plan.peak_bytes
        assert f", {error.one_level.recompute_overhead:.0%} slower; or for '" in line
        assert not any(segment.cuts for segment in error.one_level.segments)
        at_one = autockpt.solve(profile, line.split("'")[1])
        assert at_one.recompute_overhead <= error.one_level.recompute_overhead * 1.01


def test_no_frame_of_the_library_stands_above_an_error() -> None:
    profile = autockpt.profile(model(), BATCH)
    for call in (
        lambda: autockpt.apply(model(), "120KB", inputs=BATCH),
        lambda: autockpt.solve(profile, "120KB"),
        lambda: autockpt.apply(model(), "24G"),
    ):
        with pytest.raises(autockpt.AutockptError) as caught:
            call()
        assert frames(caught.value) == ["call"]
        assert caught.value.__suppress_context__


@pytest.mark.parametrize("where", ["missing.json", "missing/plan.json", "."])
def test_nor_above_one_of_a_file_that_cannot_be_read(where: str) -> None:
    """There stood up to eleven, pathlib's too."""
    trained = model()
    for call in (
        lambda: Plan.load(where),
        lambda: autockpt.Profile.load(f"{where}/profile.json"),
        lambda: autockpt.apply(trained, plan=where),
        lambda: Plan.of([]).save(f"{where}/missing/plan.json"),
    ):
        with pytest.raises(OSError, match=r"^\[Errno \d+\] .*'") as caught:
            call()
        own = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)[1:]]
        assert own in (["<lambda>", "call"], ["call"]), own
        assert caught.value.__suppress_context__ and caught.value.filename.startswith(where)
    assert autockpt.plan_of(trained) is None


def test_a_files_error_of_the_users_own_keeps_its_frames() -> None:
    def opens(own: Told, x: torch.Tensor) -> torch.Tensor:
        return computes(own, torch.load("missing.pt"))

    with pytest.raises(FileNotFoundError) as caught:
        autockpt.measure(lambda: block(opens)(BATCH))
    assert "opens" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_nor_in_a_loop() -> None:
    trained = autockpt.apply(model(), "120KB")
    with pytest.raises(Infeasible, match="training can go on") as caught:
        for _ in range(4):
            trained(BATCH).square().mean().backward()
    assert frames(caught.value) == ["governed_forward"]
    trained(BATCH).square().mean().backward()


def test_all_frames_stay_for_whoever_looks_for_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOCKPT_VERBOSITY", "debug")
    with pytest.raises(Infeasible) as caught:
        autockpt.apply(model(), "120KB", inputs=BATCH)
    assert len(frames(caught.value)) > 1


def test_a_models_own_error_stays_attached_with_its_frames() -> None:
    def broken(own: Told, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    with pytest.raises(autockpt.ProfilingError) as caught:
        autockpt.profile(block(broken), BATCH)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "forward" in [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)]


def test_a_forward_of_the_users_that_raises_our_error_keeps_its_frames() -> None:
    def asks(own: Told, x: torch.Tensor) -> torch.Tensor:
        autockpt.Plan.of([[]])
        return computes(own, x)

    trained = autockpt.apply(torch.nn.Sequential(block(asks), block()), "1GB")
    with pytest.raises(autockpt.InvalidFile) as caught:
        trained(BATCH)
    assert "forward" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize("budget", ["24", 24, "24.5", " 8 ", "24000"])
def test_an_amount_without_a_unit_is_refused_at_the_call(budget: str | int) -> None:
    """It was refused as the plan was made, in the third step."""
    number = str(budget).strip()
    with pytest.raises(autockpt.BudgetError, match=rf"budget '?{budget}'? (has no unit|is 24 bytes).*'{number}GB'"):
        autockpt.apply(model(), budget)
    if budget == 24:
        with pytest.raises(Infeasible, match=r"budget 24 is 24 bytes \(did you mean '24GB'\?\)"):
            autockpt.solve(autockpt.profile(model(), BATCH), budget)


def test_a_plan_without_a_name_is_told_as_such() -> None:
    """It was an IsADirectoryError of '.'."""
    with pytest.raises(autockpt.NotApplicable, match=r"plan is ''.*plan='plan.json'"):
        autockpt.apply(model(), plan="")


@pytest.mark.parametrize(
    ("pattern", "near"), [("*.atn", r"'\*.attn'"), ("attn", r"'\*.attn'"), ("2.mpl#0", "'2.mlp'"), ("zzz", "near are")]
)
def test_a_slip_in_a_pin_is_told_before_any_step_with_the_nearest_names(pattern: str, near: str) -> None:
    given = model()
    for pins in ({"keep": pattern}, {"recompute": [pattern]}):
        with pytest.raises(PinError, match=f"no module matches .*{near}"):
            autockpt.apply(given, "lowest", **pins)
    assert "forward" not in vars(given)


@pytest.mark.parametrize(
    ("keep", "recompute", "saved", "boundary"),
    [
        ("2", "2", "", ""),
        ("2.*", "*.mlp", "", ""),
        ("2.mlp#0", "2.mlp", "", ""),
        ("", "2", "2", ""),
        ("2", "", "", "2"),
        ("", "", "2", "[02]"),
    ],
)
def test_a_module_that_is_pinned_in_two_ways_is_told_before_any_step(
    keep: str, recompute: str, saved: str, boundary: str, tmp_path: Path
) -> None:
    """It was told in the third step."""
    given = model()
    moves = autockpt.Offload.of(tmp_path, saved=[saved] * bool(saved), boundary=[boundary] * bool(boundary))
    with pytest.raises(PinError, match="only one of both can be"):
        autockpt.apply(
            given, "lowest", keep=[keep] * bool(keep), recompute=[recompute] * bool(recompute), offload=moves
        )
    assert "forward" not in vars(given)


def test_pins_that_go_together_are_taken(tmp_path: Path) -> None:
    moves = autockpt.Offload.of(tmp_path, saved="0", boundary="2")
    given = autockpt.apply(model(), "lowest", keep="0", recompute=["2", "2.mlp#1"], offload=moves)
    assert "forward" in vars(given)


def test_a_plan_may_be_the_file_that_it_was_saved_in(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    Plan.of(["0", "2"]).save(path)
    for given in (path, str(path)):
        assert autockpt.plan_of(autockpt.apply(model(), plan=given)) == Plan.of(["0", "2"])
    with pytest.raises(FileNotFoundError):
        autockpt.apply(model(), plan=tmp_path / "none.json")
    path.write_text("{}")
    with pytest.raises(autockpt.InvalidFile):
        autockpt.apply(model(), plan=path)
