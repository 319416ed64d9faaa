"""Glue: torch functions of a caller's own code as members of its segments, alone, with calls, kept or skipped."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from autockpt import InvalidFile, NotApplicable, Plan, Segment
from tests.doors import install, uninstall, watching_replays
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, summed
from tests.toys.chains import InTurn
from tests.toys.told import Told


class Net(nn.Module):
    """Draws, splits, scales by a parameter and joins between its children, which call functions of these names too."""

    weight: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))
        self.second = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.Sigmoid())
        self.last = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        with torch.no_grad():
            scale = torch.sigmoid(first).mean()
        hidden = F.dropout(torch.tanh(first * self.weight), 0.3)
        left, right = hidden.chunk(2, -1)
        joined = torch.cat([left.sigmoid(), right * scale, hidden], -1)
        second = self.second(joined)
        normed = F.batch_norm(second, self.mean, self.variance, training=True)
        second = second + normed.mul_(0.5)
        out: Tensor = self.last(F.gelu(second)).tanh()
        return out


def through() -> nn.Module:
    """Goes through a sequence instead of calling it."""
    torch.manual_seed(0)
    return InTurn(
        nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))),
        lambda _, layer, x: torch.tanh(layer(x)),
    )


def outer() -> nn.Module:
    """Calls one net twice, so that occurrences count."""
    return Told(lambda own, x: own.net(own.net(x)).sin(), net=Net())


def plan(*calls: str, keep: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> Plan:
    return Plan(segments=(Segment(calls=calls, keep=keep, skip=skip),))


GLUE = ("#0/mul#0", "#0/tanh#0", "#0/dropout#0", "#0/chunk#0", "#0/sigmoid#1", "#0/mul#1", "#0/cat#0")


@pytest.mark.parametrize(
    "wanted",
    [
        plan("#0/gelu#0"),
        plan("#0/tanh#0"),
        plan("#0/dropout#0"),
        plan("#0/mul#0", "#0/tanh#0", "#0/dropout#0"),
        plan(*GLUE),
        plan(*GLUE, "second#0"),
        plan("first#0", *GLUE, "second#0"),
        plan("#0/cat#0", "second#0"),
        plan("first#0", "#0/tanh#0", "second#0"),
        plan(*GLUE, "second#0", keep=("#0/dropout#0", "second.0#0")),
        plan("first#0", *GLUE, "second#0", keep=("#0/tanh#0",), skip=("#0/mul#0",)),
        plan("#0/gelu#0", "last#0", "#0/tanh#1"),
        Plan(
            segments=(
                Segment(calls=("first#0",)),
                Segment(calls=("#0/tanh#0", "#0/dropout#0"), parent="#0"),
                Segment(calls=("#0/cat#0", "second#0"), keep=("second.0#0/linear#0",), parent="#0"),
                Segment(calls=("#0/gelu#0", "last#0")),
            )
        ),
    ],
    ids=lambda wanted: "; ".join(
        " ".join((*segment.calls, "but", *segment.keep, *segment.skip)) for segment in wanted.segments
    ),
)
def test_any_glue_can_be_recomputed(wanted: Plan) -> None:
    assert_same(Net(), wanted, summed)


def test_glue_without_gradients_runs_plain_whatever_it_is() -> None:
    class Indexed(Net):
        def forward(self, x: Tensor) -> Tensor:
            (rows,) = (x.sum(1) > -1).nonzero(as_tuple=True)
            hidden = torch.zeros_like(x).index_add(0, rows, self.first(x)[rows])
            out: Tensor = self.last(hidden.tanh())
            return out

    assert_same(Indexed(), plan("#0/gt#0", "#0/nonzero#0", keep=("#0/nonzero#0",)), summed, replays=False)
    assert_same(Indexed(), plan("#0/index_add#0", "#0/tanh#0", keep=("#0/index_add#0",)), summed)


def test_the_calls_that_were_asked_for_are_replayed() -> None:
    model = Net()
    install(model, plan("#0/cat#0", "second#0"))
    with watching_replays(model) as replayed:
        summed(model).backward()
    assert replayed == [("#0/cat#0", "second#0")]


def test_what_the_model_owns_is_no_reason_for_a_replay() -> None:
    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.first(x) * self.mean + self.last.weight[0] * self.last.bias
            return out

    assert_same(Scaled(), plan("#0/mul#0"), summed, replays=False)
    assert_same(Scaled(), plan("#0/mul#1"), summed)  # it is given a view of a weight, which is nobody's own


@pytest.mark.parametrize("occurrence", [0, 1])
def test_glue_belongs_to_one_call_of_a_module(occurrence: int) -> None:
    call = f"net#{occurrence}"
    wanted = plan(f"{call}/cat#0", f"net.second#{occurrence}", f"{call}/gelu#0")
    assert_same(outer(), wanted, summed)
    model = outer()
    install(model, wanted)
    with watching_replays(model) as replayed:
        summed(model).backward()
    assert replayed == [wanted.segments[0].calls]


def test_what_the_members_of_a_sequence_call_is_not_the_callers_own() -> None:
    model = through()
    wanted = Plan(segments=(Segment(calls=("blocks.1#0", "#0/tanh#1"), parent="#0"),))
    assert_same(model, wanted, summed)
    install(model, wanted)
    with watching_replays(model) as replayed:
        summed(model).backward()
    assert replayed == [("blocks.1#0", "#0/tanh#1")]


def test_a_plan_with_glue_goes_along_with_copies_and_comes_off() -> None:
    model, wanted = Net(), plan(*GLUE, "second#0", keep=("#0/dropout#0",))
    expected = steps(copy.deepcopy(model), summed)
    install(model, wanted)
    for copied in (copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))):
        with watching_replays(copied) as replayed:
            assert expected.differences(steps(copied, summed)) == []
        assert len(replayed) == 2
    uninstall(model)
    assert not [name for name, module in model.named_modules() if "forward" in module.__dict__]


def test_a_gradient_inside_forward_replays_glue() -> None:
    class Inside(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x).tanh().sigmoid()
            torch.autograd.backward(hidden.sum(), inputs=[*self.first[0].parameters()])
            out: Tensor = self.last(torch.sigmoid(self.last(hidden.detach()).tanh()))
            return out

    assert_same(Inside(), plan("first#0", "#0/tanh#0", "#0/sigmoid#0"), summed)
    assert_same(Inside(), plan("#0/tanh#1", "#0/sigmoid#1"), summed)


def test_glue_that_changes_a_buffer_is_refused_aloud() -> None:
    model = Net()
    install(model, plan("#0/batch_norm#0"))
    with pytest.raises(NotApplicable, match="#0/batch_norm#0 changes a buffer"):
        summed(model)


def test_a_kept_norm_leaves_its_buffers_alone() -> None:
    assert_same(Net(), plan("second#0", "#0/batch_norm#0", keep=("#0/batch_norm#0",)), summed)


def test_glue_that_changes_its_argument_ends_in_an_error() -> None:
    model = Net()
    install(model, plan("#0/mul_#0", "#0/add#0", "#0/gelu#0"))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        summed(model).backward()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (plan("#0/tanh#0", "net#0/tanh#0"), "cannot be one segment"),
        (Plan(segments=(Segment(calls=("net#0/tanh#0",), parent="#0"),)), "cannot be one segment"),
        (plan("net.third#0/tanh#0"), "has no 'net.third'"),
        (plan("#0/rrelu#0"), "draws its noise after autograd has saved it"),
        (plan("#0/tanh#0", keep=("#0/sin#0",)), "is not inside the segment"),
    ],
)
def test_what_cannot_be_a_segment_of_glue(wanted: Plan, message: str) -> None:
    with pytest.raises(NotApplicable, match=message):
        install(outer(), wanted)


@pytest.mark.parametrize(
    "segments",
    [
        [{"calls": ("#0/tanh#0",)}, {"calls": ("#0/tanh#0",)}],
        [{"calls": ("first#0",), "keep": ("#0/tanh#0",)}, {"calls": ("#0/tanh#0",)}],
        [{"calls": ("#0/tanh#0",), "keep": ("#0/tanh#0",), "skip": ("#0/tanh#0",)}],
    ],
)
def test_no_function_stands_in_a_plan_twice(segments: list[dict[str, tuple[str, ...]]]) -> None:
    with pytest.raises(InvalidFile, match="twice"):
        Plan(segments=tuple(Segment(**segment) for segment in segments))  # type: ignore[arg-type]
