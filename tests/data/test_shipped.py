"""The recorded profiles: they load, are what they say, are solved by every solver, and can be recorded again."""

from __future__ import annotations

import functools
import gzip
import json
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from _pytest.mark import ParameterSet

from autockpt import Profile, UnknownProfile
from autockpt.solvers import SOLVERS, Infeasible, Problem, simulate, solve
from autockpt.solvers.units import format_bytes, format_seconds
from tests.doors import data_files, find_candidates, is_shipped_name, read_shipped, shipped_names

NAMES = [
    "bert-large",
    "gpt2-xl",
    "llama-1b",
    "llama-8b",
    "mixtral-small",
    "resnet-152",
    "resnet-50",
    "sd-unet",
    "swin-base",
    "t5-large",
    "vit-large",
    "whisper-medium",
]

MOST_BYTES = 400_000


@functools.cache
def recorded() -> dict[str, Profile]:
    return {name: Profile.load(name) for name in shipped_names()}


def test_the_recorded_profiles_are_these() -> None:
    assert shipped_names() == NAMES == list(recorded())


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_small_and_just_as_it_would_be_written(name: str) -> None:
    packed = read_shipped(name)
    assert packed.startswith(data_files.GZIP_MAGIC)
    assert len(packed) < MOST_BYTES
    profile = Profile.load(name)  # validated
    assert data_files.encode(profile) == gzip.decompress(packed)


def test_a_file_from_before_late_forwards_loads_as_it_was() -> None:
    stored = json.loads(gzip.decompress(read_shipped("resnet-50")))
    del stored["late_forwards"], stored["kept_reads"]
    older = data_files.decode(json.dumps(stored).encode(), Profile, source="older")
    assert older == Profile.load("resnet-50")


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_says_how_it_was_recorded(name: str) -> None:
    profile = recorded()[name]
    assert profile.recipe is not None and profile.recipe.command.split()[-1] == name
    assert (profile.mode, profile.device in ("a100", "h100", "rtx4090")) == ("fake", True)
    assert profile.optimizer.startswith(profile.recipe.optimizer) and profile.static.optimizer_bytes


def rows() -> list[ParameterSet]:
    """`auto` on every profile, a third of the others; the rest in `make sweep`."""
    found = []
    for n, name in enumerate(NAMES):
        for s, solver in enumerate(SOLVERS):
            daily = solver == "auto" or (n + s) % 3 == 0
            marks = () if daily else pytest.mark.sweep
            found.append(pytest.param(name, solver, marks=marks, id=f"{name}-{solver}"))
    return found


@pytest.mark.parametrize(("name", "solver"), rows())
def test_every_solver_solves_it(name: str, solver: str) -> None:
    problem, budget_bytes = quarter_of_the_way_down(name)
    if solver in ("none", "never", "except_last"):  # of one microbatch, the last one is all
        with pytest.raises(Infeasible) as lowest:
            solve(problem, budget_bytes, solver=solver)
        assert lowest.value.minimum_bytes == recorded()[name].plain_peak_bytes > budget_bytes
    else:
        try:
            solution = solve(problem, budget_bytes, solver=solver, seconds=1.0)
        except Infeasible as error:
            assert solver == "speed"  # it leaves matrix products alone, and with them most of what they save
            assert budget_bytes < error.minimum_bytes < recorded()[name].plain_peak_bytes
            return
        timeline = simulate(problem, solution.chosen)
        assert solution.peak_bytes == timeline.peak_bytes <= budget_bytes
        assert solution.recompute_seconds == timeline.recompute_seconds > 0


@functools.lru_cache(maxsize=1)  # tests of one profile follow one another
def quarter_of_the_way_down(name: str) -> tuple[Problem, int]:
    """The problem of a profile, and a budget between the plain peak and that of recomputing everything."""
    problem = find_candidates(Profile.load(name)).problem
    with pytest.raises(Infeasible) as lowest:
        solve(problem, 1, solver="all")
    return problem, (3 * recorded()[name].plain_peak_bytes + lowest.value.minimum_bytes) // 4


@pytest.mark.parametrize(
    "name", [name if name == "llama-1b" else pytest.param(name, marks=pytest.mark.sweep) for name in NAMES]
)
def test_recording_it_again_gives_the_same_file(name: str) -> None:
    before = Profile.load(name)
    assert before.recipe is not None
    here = {package: version(package).partition("+")[0] for package in before.recipe.versions}
    if here != before.recipe.versions:
        pytest.skip(f"recorded with {before.recipe.versions}, here are {here}")
    from benchmarks.shipped.recipes import record

    again = record(name)
    assert again == msgspec.structs.replace(before, recorded=again.recorded)


def test_the_recipes_are_those_of_the_files() -> None:
    from benchmarks.shipped.recipes import RECIPES

    assert sorted(RECIPES) == NAMES
    for name, setup in RECIPES.items():
        recipe = recorded()[name].recipe
        assert recipe is not None
        assert (setup.batch, setup.precision, setup.device) == (recipe.batch, recipe.precision, recorded()[name].device)


def test_the_readme_has_a_row_for_each() -> None:
    text = (Path(__file__).parents[2] / "profiles" / "README.md").read_text()
    for name, each in recorded().items():
        start = f"| `{name}` | "
        (row,) = [line for line in text.splitlines() if line.startswith(start)]
        cells = [cell.strip() for cell in row.split("|")[2:-1]]
        recipe = each.recipe
        assert recipe is not None
        figures = [format_bytes(each.plain_peak_bytes), format_seconds(each.plain_seconds)]
        assert cells == [recipe.batch, recipe.precision, recipe.optimizer, each.device, *figures]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("gpt2_xl", "the nearest name is 'gpt2-xl'"),
        ("llama", "the nearest names are 'llama-8b', 'llama-1b'"),
        ("GPT2-XL", "names are 'gpt2-xl'"),
        ("zzz", ""),
    ],
)
def test_an_unknown_name_is_told_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownProfile, match="autockpt profiles") as caught:
        Profile.load(wrong)
    assert isinstance(caught.value, FileNotFoundError)
    assert (near in str(caught.value)) and ("nearest" in str(caught.value)) == bool(near)
    assert repr(wrong) in str(caught.value)


def test_only_a_bare_word_that_is_no_file_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_shipped_name("gpt2-xl")
    for path in ("gpt2-xl.json", "./gpt2-xl", "folder/gpt2-xl", tmp_path / "gpt2-xl"):
        assert not is_shipped_name(path)
    Path("gpt2-xl").mkdir()
    assert is_shipped_name("gpt2-xl")
    Path("gpt2-xl").rmdir()
    Path("gpt2-xl").write_text("mine")
    assert not is_shipped_name("gpt2-xl")
