"""Sixty faults are planted, and each still applies: `make planted` says which test finds it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.planted.fault import PARTS, DoesNotApply, Fault, faults

ROOT = Path(__file__).parents[2]
FAULTS = faults()


def test_there_are_ten_in_each_part() -> None:
    assert Counter(each.part for each in FAULTS) == dict.fromkeys(PARTS, 10)
    assert len({each.says for each in FAULTS}) == len({(each.file, each.before) for each in FAULTS}) == 60


@pytest.mark.parametrize("part", PARTS)
def test_each_applies_and_is_no_error_of_syntax(part: str) -> None:
    for fault in (each for each in FAULTS if each.part == part):
        source = (ROOT / fault.file).read_text()
        planted = fault.planted_in(source)
        ast.parse(planted)
        differing = [one for one, other in zip(source.splitlines(), planted.splitlines(), strict=True) if one != other]
        assert [line.strip() for line in differing] == [fault.before]


@pytest.mark.parametrize("part", PARTS)
def test_the_tests_that_are_expected_to_find_it_are_there(part: str) -> None:
    for fault in (each for each in FAULTS if each.part == part):
        assert fault.found
        for file, _, name in (each.partition("::") for each in fault.found):
            assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).exists()


@pytest.mark.parametrize("source", ["", "    known += 1\n    known += 1\n"])
def test_a_line_that_is_not_there_once_is_named(source: str) -> None:
    fault = Fault(says="", part="stash", file="file.py", before="known += 1", after="pass", found=())
    with pytest.raises(DoesNotApply, match=r"file\.py has the line 'known \+= 1' [02] times"):
        fault.planted_in(source)
