from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import ChainStage, ChainStep, Infeasible, InvalidProblem, StageOption, solve_chain


def chain(
    forward: Sequence[float],
    backward: Sequence[float],
    passed_bytes: Sequence[int],
    saved_bytes: Sequence[int],
    forward_transient: Sequence[int],
    backward_transient: Sequence[int],
) -> tuple[list[ChainStage], int]:
    """A chain as the rotor project writes it, with the loss as last stage; and its input's size."""
    options = [
        StageOption(
            forward_seconds=forward[i],
            backward_seconds=backward[i],
            saved_bytes=saved_bytes[i + 1],
            forward_transient_bytes=forward_transient[i],
            backward_transient_bytes=backward_transient[i],
        )
        for i in range(len(forward))
    ]
    stages = [
        ChainStage(options=(option,), output_bytes=n) for option, n in zip(options, passed_bytes[1:], strict=True)
    ]
    loss = StageOption(forward_seconds=0.0, backward_seconds=0.0, saved_bytes=0)
    return [*stages, ChainStage(options=(loss,), output_bytes=0)], passed_bytes[0]


EVEN = chain([1] * 10, [2] * 10, [1] * 11, [3] * 11, [0] * 10, [0] * 10)
UNEVEN = chain(
    [1, 5, 3, 9, 2, 10, 8, 6, 4, 7],
    [2] * 10,
    [1, 2, 1, 1, 2, 3, 2, 3, 2, 1, 1],
    [1, 2, 3, 1, 2, 4, 5, 6, 3, 2, 1],
    [1, 2, 3, 4, 5, 4, 3, 2, 1, 0],
    [5, 4, 3, 2, 1, 2, 1, 3, 5, 4],
)
EMPTY_FIFTH = chain([1] * 10, [2] * 10, [*[1] * 5, 0, *[1] * 5], [*[3] * 5, 0, *[3] * 5], [0] * 10, [0] * 10)


@pytest.mark.parametrize(
    ("model", "budget_bytes", "n_operations", "seconds"),
    [
        # Numbers of operations at 7, 8, 9, 15; 16, 26; 7 are asserted by the tests of the rotor project of
        # Beaumont et al. (topal-team/rockmate, tag v1.0, rotor_exp/rotor); the other rows and all seconds come from
        # a second implementation of the paper's recurrence.
        *((EVEN, *row) for row in [(7, 66, 75), (8, 41, 50), (9, 36, 45), (15, 28, 37), (20, 26, 35)]),
        *((EVEN, *row) for row in [(31, 22, 31), (32, 22, 31), (33, 21, 30), (50, 21, 30)]),
        *((UNEVEN, *row) for row in [(16, 43, 178), (20, 28, 113), (26, 25, 93), (40, 21, 75)]),
        (EMPTY_FIFTH, 7, 42, 51),
    ],
)
def test_golden_values_of_rotor(
    model: tuple[list[ChainStage], int], budget_bytes: int, n_operations: int, seconds: float
) -> None:
    stages, input_bytes = model
    found = solve_chain(stages, budget_bytes, input_bytes=input_bytes)
    assert len(found.steps) - 1 == n_operations  # forward and backward of the loss are one operation there
    assert found.seconds == seconds


@pytest.mark.parametrize(("model", "budget_bytes"), [(EVEN, 6), (UNEVEN, 15), (EMPTY_FIFTH, 6)])
def test_golden_minimum_of_rotor(model: tuple[list[ChainStage], int], budget_bytes: int) -> None:
    stages, input_bytes = model
    with pytest.raises(Infeasible) as caught:
        solve_chain(stages, budget_bytes, input_bytes=input_bytes)
    assert caught.value.minimum_bytes == budget_bytes + 1


def peak_and_seconds(stages: Sequence[ChainStage], input_bytes: int, steps: Sequence[ChainStep]) -> tuple[int, float]:
    """Walk through a schedule, with what stands written down by name."""
    size = [input_bytes, *(stage.output_bytes for stage in stages)]
    inputs, saved, gradient = {0}, dict[int, int](), len(stages)  # inputs held, saved bytes, gradient that stands
    peak, seconds = 0, 0.0

    def standing() -> int:
        return sum(size[i] for i in inputs) + sum(saved.values()) + size[gradient]

    for step in steps:
        i, option = step.stage, stages[step.stage].options[step.option]
        if step.kind == "backward":
            assert gradient == i + 1
            peak = max(peak, standing() + size[i] + option.backward_transient_bytes)
            seconds += option.backward_seconds
            del saved[i]
            gradient = i
            inputs.discard(i) if i else None
            continue
        assert i in inputs or (i - 1) in saved
        seconds += option.forward_seconds
        if step.kind == "keep":
            saved[i] = option.saved_bytes
            peak = max(peak, standing() + option.forward_transient_bytes)
            continue
        peak = max(peak, standing() + size[i + 1] + option.forward_transient_bytes)
        inputs.add(i + 1)
        if step.kind == "pass":
            inputs.discard(i)
    assert gradient == 0 and not saved
    return peak, seconds


def every_schedule(
    stages: Sequence[ChainStage], s: int, t: int, *, nested: bool, once: bool
) -> Iterator[list[ChainStep]]:
    """All schedules of stages s to t, without regard to memory."""
    for k in range(len(stages[s].options)):
        for rest in every_schedule(stages, s + 1, t, nested=nested, once=once) if t > s else [[]]:
            yield [
                ChainStep(kind="keep", stage=s, option=k),
                *rest,
                ChainStep(kind="backward", stage=s, option=k),
            ]
    for j in range(s + 1, t + 1) if not once else ():
        for late in every_schedule(stages, j, t, nested=nested, once=False):
            for early in every_schedule(stages, s, j - 1, nested=nested, once=not nested):
                passing = [ChainStep(kind="pass", stage=i) for i in range(s + 1, j)]
                yield [ChainStep(kind="hold", stage=s), *passing, *late, *early]


small = st.integers(0, 6)


@st.composite
def chains(draw: st.DrawFn, *, most_stages: int, most_options: int) -> list[ChainStage]:
    stages = []
    for _ in range(draw(st.integers(1, most_stages))):
        output = draw(small)
        options = draw(
            st.lists(
                st.builds(
                    StageOption,
                    forward_seconds=st.integers(0, 9).map(float),
                    backward_seconds=st.integers(0, 9).map(float),
                    saved_bytes=st.integers(output, output + 6),
                    forward_transient_bytes=small,
                    backward_transient_bytes=small,
                ),
                min_size=1,
                max_size=most_options,
            )
        )
        stages.append(ChainStage(options=tuple(options), output_bytes=output))
    return stages


@pytest.mark.parametrize(
    ("nested", "most_stages", "most_options"), [(False, 4, 3), (True, 4, 2)], ids=["flat", "nested"]
)
def test_the_programme_equals_brute_force(nested: bool, most_stages: int, most_options: int) -> None:
    recomputed = 0

    @settings(max_examples=150)
    @given(chains(most_stages=most_stages, most_options=most_options), st.integers(0, 40), st.integers(0, 4))
    def compare(stages: list[ChainStage], budget_bytes: int, input_bytes: int) -> None:
        nonlocal recomputed
        all_of_them = every_schedule(stages, 0, len(stages) - 1, nested=nested, once=False)
        judged = [peak_and_seconds(stages, input_bytes, steps) for steps in all_of_them]
        best = min((seconds for peak, seconds in judged if peak <= budget_bytes), default=None)
        if best is None:
            with pytest.raises(Infeasible) as caught:
                solve_chain(stages, budget_bytes, input_bytes=input_bytes, nested=nested)
            assert caught.value.minimum_bytes == min(peak for peak, _ in judged)
            return
        found = solve_chain(stages, budget_bytes, input_bytes=input_bytes, nested=nested)
        peak, seconds = peak_and_seconds(stages, input_bytes, found.steps)
        assert peak <= budget_bytes
        assert seconds == found.seconds == best
        recomputed += any(step.kind == "hold" for step in found.steps)

    compare()
    assert recomputed > 5


def test_nesting_reaches_lower_than_flat_segments() -> None:
    stages, input_bytes = EVEN
    with pytest.raises(Infeasible):
        solve_chain(stages, 9, input_bytes=input_bytes, nested=False)
    assert solve_chain(stages, 9, input_bytes=input_bytes).seconds == 45
    flat, nested = (solve_chain(stages, 20, input_bytes=input_bytes, nested=n).seconds for n in (False, True))
    assert nested <= flat


def test_large_sizes_are_rounded_up() -> None:
    stages, input_bytes = chain([1] * 10, [2] * 10, [10**6] * 11, [3 * 10**6] * 11, [0] * 10, [0] * 10)
    found = solve_chain(stages, 20 * 10**6, input_bytes=input_bytes)
    assert found.seconds == 35
    assert peak_and_seconds(stages, input_bytes, found.steps)[0] <= 20 * 10**6


def test_an_empty_chain_and_a_stage_without_options() -> None:
    assert solve_chain([], 1).steps == ()
    with pytest.raises(InvalidProblem, match="at least one option"):
        solve_chain([ChainStage(options=(), output_bytes=1)], 1)
