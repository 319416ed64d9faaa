"""Functions and operators in a file: that they survive it, how large it is, and what is not believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from autockpt import InvalidFile, Profile
from tests.record.blocks import MODES, block, zoo


@pytest.mark.parametrize("mode", MODES)
def test_a_profile_with_functions_survives_its_file(mode: Any, tmp_path: Path) -> None:
    profile, _ = block(mode)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile


def test_the_file_of_a_twelve_layer_transformer_stays_small(tmp_path: Path) -> None:
    zoo("gpt2").save(tmp_path / "profile.json")
    assert (tmp_path / "profile.json").stat().st_size < 400_000


@pytest.mark.parametrize(
    ("table", "change", "complaint"),
    [
        ("functions", {"name": ("linear",)}, "columns of functions"),
        ("functions", {"call": (99,) * 12}, "call that is not"),
        ("functions", {"exit": (0,) * 12}, "outside its call"),
        ("functions", {"reads": ((999,),) * 12}, "tensor that is not"),
        ("functions", {"occurrence": (0,) * 12}, "twice"),
        ("functions", {"makes": ((0,),) * 12}, "not born in it"),
        ("ops", {"seconds": ()}, "columns of operators"),
        ("ops", {"writes": ((999,),)}, "tensor that is not"),
        ("saves", {"function": (99,)}, "names a function that is not"),
        ("saves", {"op": (0,)}, "another function"),
    ],
)
def test_tables_that_contradict_each_other_are_refused(table: str, change: dict[str, Any], complaint: str) -> None:
    profile, _ = block()
    old = getattr(profile, table)
    length = len(old)
    # One value stands for all, but where the length itself is what is wrong.
    wrong = {name: value[:1] * length if "columns" not in complaint else value for name, value in change.items()}
    with pytest.raises(InvalidFile, match=complaint):
        Profile(**{**msgspec.structs.asdict(profile), table: msgspec.structs.replace(old, **wrong)})
