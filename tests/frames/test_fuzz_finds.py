"""What fuzzing found, one test each, with the smallest model that showed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.check import check
from tests.fuzz.tree import Case, Choice, How, N

WHOLE = (("stem#0", "tree#0"),)


def test_the_noise_of_an_rrelu_is_drawn_after_it_was_saved() -> None:
    assert any("RReLU" in reason for reason in check(Case(N("RRelu"))).refused)
    assert check(Case(N("RRelu"), choice=Choice(blind=True), calls=WHOLE)).detail.startswith("NotApplicable: tree#0")


def test_a_buffer_that_forward_reads_and_writes_behind_autograds_back() -> None:
    assert check(Case(N("AveragedByData"), choice=Choice(unnamed=True), calls=WHOLE)).result == "exact"


def test_an_ordered_dictionary_with_attributes_that_the_caller_empties() -> None:
    assert check(Case(N("BoxedOutput", N("Linear")), calls=(("tree.parts.0#0",),))).result == "exact"


def test_a_forward_that_allocates_differently_when_it_keeps_nothing_can_be_recorded() -> None:
    assert check(Case(N("Rescued", N("Linear")))).result == "exact"


def test_a_generator_inside_a_dictionary_that_both_calls_of_a_run_draw_from() -> None:
    case = Case(N("GivesGeneratorInside", N("Linear")), calls=(("tree.noisy#0", "tree.noisy#1"),))
    assert check(case).result == "exact"


@pytest.mark.parametrize("norm", ["InstanceNorm", "BatchNorm1d", "BatchNorm2d"])
def test_running_statistics_that_the_recorded_forward_never_reached(norm: str) -> None:
    verdict = check(Case(N("LeavesByChance", N("Dropout"), N(norm)), calls=WHOLE))
    assert verdict.result == "exact" and verdict.replays


def test_an_argument_changed_later_that_save_on_cpu_keeps_without_a_copy() -> None:
    case = Case(
        N("ChangesArgument", N("Linear")),
        How(offload=True),
        Choice(blind=True),
        (("tree.parts.0.0#0", "tree.parts.0.1#0"),),
    )
    assert check(case).detail.startswith("Changed: in the replay of tree.parts.0.0#0")


def test_candidates_of_a_call_that_changes_its_argument() -> None:
    case = Case(N("GluedInPlace", N("Sequential", N("DropoutInplace"), N("Alias"), N("Conv1d"))))
    assert check(case).result == "exact"


def test_a_result_that_is_changed_in_place_behind_its_segment_is_not_kept() -> None:
    tree = N("ChangesArgument", N("Dropout"), N("Tanh"))
    choices = [Choice(picks=(pick,), units="rules", dice=dice) for pick in range(8, 12) for dice in range(2)]
    assert {check(Case(tree, choice=choice)).result for choice in choices} == {"exact"}


def test_a_custom_function_saves_what_a_torch_function_inside_it_made() -> None:
    case = Case(N("SavesOutput"), choice=Choice(units="rules", picks=(1,)))
    verdicts = [check(replace(case, choice=replace(case.choice, dice=dice))) for dice in range(6)]
    assert {verdict.result for verdict in verdicts} == {"exact"}
    assert any(verdict.selective for verdict in verdicts)


def test_a_module_called_while_gradients_are_off_is_no_call_for_units_either() -> None:
    case = Case(
        N("NoGrad"),
        choice=Choice(units="rules"),
        calls=(("tree#0",),),
        keep=(("tree#0/linear#0", "tree#0/div#0"),),
        skip=(("tree.linear#1", "tree#0/mul#0"),),
    )
    assert check(case).result == "exact"


def test_a_kept_function_leaves_a_generator_that_each_forward_makes_as_it_was_after_it() -> None:
    case = Case(N("GivesNewGenerator", N("Tanh")), calls=(("tree#0",),), keep=(("tree.noisy#0/rand#0",),))
    assert check(case).result == "exact"


def test_candidates_count_calls_that_run_without_gradients() -> None:
    verdict = check(Case(N("NoGrad"), calls=(("tree.linear#1",),)))
    assert verdict.result == "exact" and verdict.replays


def test_a_module_that_catches_the_end_of_a_replay_and_calls_its_units_again() -> None:
    case = Case(N("HandledAll"), calls=(("tree#0",),), keep=(("tree.linear#1",),))
    assert check(case).result == "exact"
