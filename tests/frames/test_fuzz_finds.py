"""What fuzzing found, a row or a test each, with the smallest model that showed it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.check import check
from tests.fuzz.tree import Case, Choice, How, N

WHOLE = (("stem#0", "tree#0"),)

EXACT = {
    "a buffer that forward reads and writes behind autograd's back": Case(
        N("AveragedByData"), choice=Choice(unnamed=True), calls=WHOLE
    ),
    "an ordered dictionary with attributes that the caller empties": Case(
        N("BoxedOutput", N("Linear")), calls=(("tree.parts.0#0",),)
    ),
    "a forward that allocates differently when it keeps nothing can be recorded": Case(N("Rescued", N("Linear"))),
    "a generator inside a dictionary that both calls of a run draw from": Case(
        N("GivesGeneratorInside", N("Linear")), calls=(("tree.noisy#0", "tree.noisy#1"),)
    ),
    "candidates of a call that changes its argument": Case(
        N("GluedInPlace", N("Sequential", N("DropoutInplace"), N("Alias"), N("Conv1d")))
    ),
    "a module called while gradients are off is no call for units either": Case(
        N("NoGrad"),
        choice=Choice(units="rules"),
        calls=(("tree#0",),),
        keep=(("tree#0/linear#0", "tree#0/div#0"),),
        skip=(("tree.linear#1", "tree#0/mul#0"),),
    ),
    "a kept function leaves a generator that each forward makes as it was after it": Case(
        N("GivesNewGenerator", N("Tanh")), calls=(("tree#0",),), keep=(("tree.noisy#0/rand#0",),)
    ),
    "a module that catches the end of a replay and calls its units again": Case(
        N("HandledAll"), calls=(("tree#0",),), keep=(("tree.linear#1",),)
    ),
}

REPLAYED = {
    **{
        f"running statistics that the recorded forward never reached, {norm}": Case(
            N("LeavesByChance", N("Dropout"), N(norm)), calls=WHOLE
        )
        for norm in ("InstanceNorm", "BatchNorm1d", "BatchNorm2d")
    },
    "a buffer that a hook of a frozen layer writes between its two calls": Case(
        N("PartlyFrozen", N("ScaledOld")), calls=(("tree.1.layer#0", "tree.1.norm#0"),)
    ),
    "candidates count calls that run without gradients": Case(N("NoGrad"), calls=(("tree.linear#1",),)),
}


@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT)
def test_it_is_exact(case: Case) -> None:
    assert check(case).result == "exact"


@pytest.mark.parametrize("case", REPLAYED.values(), ids=REPLAYED)
def test_it_is_exact_where_it_is_replayed(case: Case) -> None:
    verdict = check(case)
    assert verdict.result == "exact" and verdict.replays


def test_the_noise_of_an_rrelu_is_drawn_after_it_was_saved() -> None:
    assert any("RReLU" in reason for reason in check(Case(N("RRelu"))).refused)
    assert check(Case(N("RRelu"), choice=Choice(blind=True), calls=WHOLE)).detail.startswith("NotApplicable: tree#0")


def test_an_argument_changed_later_that_save_on_cpu_keeps_without_a_copy() -> None:
    case = Case(
        N("ChangesArgument", N("Linear")),
        How(offload=True),
        Choice(blind=True),
        (("tree.parts.0.0#0", "tree.parts.0.1#0"),),
    )
    assert check(case).detail.startswith("Changed: in the replay of tree.parts.0.0#0")


def test_a_result_that_is_changed_in_place_behind_its_segment_is_not_kept() -> None:
    tree = N("ChangesArgument", N("Dropout"), N("Tanh"))
    choices = [Choice(picks=(pick,), units="rules", dice=dice) for pick in range(8, 12) for dice in range(2)]
    assert {check(Case(tree, choice=choice)).result for choice in choices} == {"exact"}


def test_a_custom_function_saves_what_a_torch_function_inside_it_made() -> None:
    case = Case(N("SavesOutput"), choice=Choice(units="rules", picks=(1,)))
    verdicts = [check(replace(case, choice=replace(case.choice, dice=dice))) for dice in range(6)]
    assert {verdict.result for verdict in verdicts} == {"exact"}
    assert any(verdict.selective for verdict in verdicts)


def test_a_recurrent_layers_workspace_is_forwards_where_a_replay_made_other_values() -> None:
    """Its bytes are not compared: those of the replay stood beside tensors of forward, and gradients were wrong."""
    case = Case(N("List", N("CountsInClosure"), N("Lstm")), How(check=True), calls=WHOLE)
    assert check(case).result == "refused"


def test_a_replay_that_needs_skipped_results_in_a_list_says_so() -> None:
    """`torch.stack` of them ended in a StopIteration."""
    case = Case(
        N("List", N("Skips", N("Conv1d")), N("BatchNorm1d")),
        choice=Choice(units="names"),
        calls=WHOLE,
        keep=((),),
        skip=(("tree.parts.0.parts.0#0/transpose#1",),),
    )
    verdict = check(case)
    assert verdict.result == "loud" and "needs the result of a call that its plan skips" in verdict.detail
