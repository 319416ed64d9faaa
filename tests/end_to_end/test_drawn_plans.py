"""Plans that no solver would choose: the judge must be right about them too, and they must be as exact."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from autockpt import Plan, Segment
from autockpt.solvers import simulate
from tests.doors import Candidates, find_candidates, find_planned, segments_of
from tests.end_to_end.reference import Reference, counting_replays, reference
from tests.rows import daily
from tests.toys.chains import through
from tests.toys.told import Told
from tests.zoo import DAILY, ZOO, Case

PREDICTION_TOLERANCE = 0.001

PLANS = 6

WIDTH = 32


def drawn(candidates: Candidates, draw: random.Random, *, first: str) -> list[int]:
    """Take candidates in random order, small and large alike, as long as they do not overlap."""
    problem = candidates.problem
    taken: list[int] = []
    free = [True] * len(problem.calls)
    wanted = draw.choice([1, 3, 10, 1000])
    order = draw.sample(range(len(problem.candidates)), len(problem.candidates))
    if first == "selective":
        order.sort(key=lambda index: not (candidates.replays[index].alone))
    elif first == "functions":
        is_function = candidates.index.is_function
        order.sort(key=lambda index: not any(map(is_function, candidates.replays[index].members)))
    for index in order:
        candidate = problem.candidates[index]
        if len(taken) < wanted and all(free[candidate.start : candidate.stop]):
            free[candidate.start : candidate.stop] = [False] * (candidate.stop - candidate.start)
            taken.append(index)
    return sorted(taken)


@pytest.mark.parametrize("name", daily(ZOO, DAILY))
def test_the_judge_is_right_about_drawn_plans(name: str) -> None:
    plain = reference(name)
    candidates = find_candidates(plain.profile)
    draw = random.Random(name)
    for number in range(PLANS):
        check(plain, candidates, drawn(candidates, draw, first=("", "selective", "functions")[number % 3]))


def attends(own: Told, x: torch.Tensor) -> Any:
    """Attention with dropout, which on a CPU keeps noise, and the projections around it.

    The storage of the product with the noise is free again when the last projection saves its input.
    """
    query, key, value = own.projection(x).chunk(3, dim=-1)
    return own.out(nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.2))


def attentive() -> nn.Module:
    """A block of it."""
    attention = Told(attends, projection=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH))
    return Told(
        lambda own, x: x + own.out(torch.tanh(own.attention(own.norm(x)))),
        norm=nn.LayerNorm(WIDTH),
        attention=attention,
        out=nn.Linear(WIDTH, WIDTH),
    )


def test_the_judge_is_right_about_a_whole_call_that_is_kept() -> None:
    torch.manual_seed(0)
    plain = Reference(Case(nn.Sequential(*(attentive() for _ in range(3))), {"input": torch.randn(4, 64, WIDTH)}))
    segment = Segment(calls=("1#0",), keep=("1.attention#0",))
    check(plain, find_planned(plain.profile, Plan(segments=(segment,))), [0])


def scaled() -> nn.Module:
    """Multiplies by a mask, part of the batch, what its last projection returns."""
    return Told(
        lambda own, x, mask: x + own.down(torch.tanh(own.up(own.norm(x)))) * mask,
        norm=nn.LayerNorm(WIDTH),
        up=nn.Linear(WIDTH, WIDTH),
        down=nn.Linear(WIDTH, WIDTH),
    )


def test_a_replay_goes_on_to_what_saves_a_part_of_the_batch() -> None:
    """There the last projection is left alone by name: else the replay would run it, and nothing needs its result."""
    torch.manual_seed(0)
    mask = (torch.rand(4, 64, WIDTH) < 0.5).float()
    model = Told(lambda own, x, mask: through(own.blocks, x, mask), blocks=nn.ModuleList(scaled() for _ in range(3)))
    plain = Reference(Case(model, {"x": torch.randn(4, 64, WIDTH), "mask": mask}))
    down, product = "blocks.1.down#0/linear#0", "blocks.1#0/mul#0"
    for keep, skip in (((), ()), ((down,), ()), ((), (down, product)), (("blocks.1.up#0/linear#0",), (down, product))):
        segment = Segment(calls=("blocks.1#0",), keep=keep, skip=skip)
        planned = find_planned(plain.profile, Plan(segments=(segment,)))
        assert segments_of(planned, [0])[0].skip == skip
        check(plain, planned, [0])


def test_what_a_member_is_given_from_outside_is_held_and_not_restored_beside_that() -> None:
    """The model's own code slices what one member returned for the next, which saves the slice."""
    plain = reference("gpt2-hidden-states")
    calls = ("transformer#0", "lm_head#0", "#0/float#0", "#0/view#0", "#0/cross_entropy#0")
    planned = find_planned(plain.profile, Plan(segments=(Segment(calls=calls),)))
    check(plain, planned, [0])


def check(plain: Reference, candidates: Candidates, chosen: list[int]) -> None:
    """Hold what a plan claims, and all that its step makes, against a measured and a plain step."""
    segments = segments_of(candidates, chosen)
    predicted = simulate(candidates.problem, chosen).peak_bytes
    with plain.under(Plan(segments=segments)):
        with counting_replays() as replays:
            outcome = plain.outcome()
        measured = plain.measured_peak()
    assert plain.plain.differences(outcome) == []
    assert sorted(replays) == sorted(len(segment.calls) for segment in segments)
    assert predicted == pytest.approx(measured, rel=PREDICTION_TOLERANCE)
