"""One test for each bug that was found in recording, named after what went wrong."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Plan, Profile, ProfilingError, Segment
from autockpt.solvers import simulate
from tests.doors import find_candidates
from tests.toys.told import Told, greedy, with_linear

BATCH = torch.randn(64, 8)


def told(between: Callable[[Told, torch.Tensor], Any]) -> Told:
    """A module that is told what to do between two layers."""
    parts = {"first": nn.Linear(8, 8), "last": nn.Linear(8, 8), "norm": nn.BatchNorm1d(8)}
    return Told(lambda own, x: own.last(between(own, own.first(x).sigmoid())), **parts, seen=None)


def inside(*modules: nn.Module) -> nn.Module:
    """Put modules one level below a call that could be a segment."""
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(*modules), nn.Linear(8, 8))


def refused(profile: Profile) -> dict[str, str]:
    candidates = find_candidates(profile)
    return {candidates.index.nodes[call].key: reason for call, reason in candidates.refused}


def predicted_step_bytes(profile: Profile) -> int:
    return simulate(find_candidates(profile).problem, ()).peak_bytes - profile.static.total_bytes


def test_a_buffer_that_a_child_changes_without_gradients_belongs_to_the_segment() -> None:
    def statistics_only(own: Told, hidden: torch.Tensor) -> Any:
        with torch.no_grad():
            own.norm(hidden)
        return (hidden * own.norm.running_mean.clone()).tanh()

    model = inside(told(statistics_only))
    twin = copy.deepcopy(model)
    calls = autockpt.profile(model, BATCH).calls
    (call,) = [call for call in calls if call.key == "1#0"]
    assert set(call.buffers) == {f"1.0.norm.{name}" for name in ("num_batches_tracked", "running_mean", "running_var")}
    autockpt.apply(model, plan=Plan(segments=(Segment(calls=(call.key,), parent="#0", buffers=call.buffers),)))
    for one in (model, twin):
        one(BATCH).sum().backward()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(a.grad is None if b.grad is None else torch.equal(a.grad, b.grad) for a, b in pairs)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))


def test_a_constant_that_forward_makes_is_no_captured_tensor() -> None:
    model = inside(told(lambda own, x: (x * torch.tensor(0.5)).tanh()))
    assert refused(autockpt.profile(model, BATCH)) == {}


@pytest.mark.parametrize("mode", ["measured", "fake"])
def test_a_graph_that_outlives_the_step_does_not_reach_into_the_next_run(mode: str) -> None:
    def keeps(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        own.seen = hidden.softmax(-1).pow(2).mean()
        return hidden

    assert autockpt.profile(told(keeps), BATCH, mode=mode).mode == mode  # type: ignore[arg-type]


def test_an_exception_that_the_model_catches_closes_its_call() -> None:
    def falls_back(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        try:
            own.last(hidden[:, :3])
        except RuntimeError:
            hidden = hidden * 2
        return hidden

    profile = autockpt.profile(told(falls_back), BATCH)
    assert [call.key for call in profile.calls] == ["#0", "first#0", "last#0", "last#1"]


def test_forward_may_have_an_argument_called_name() -> None:
    class Named(nn.Linear):
        def forward(self, input: torch.Tensor, name: str = "", module: int = 0) -> torch.Tensor:
            return super().forward(input)

    model, batch = Named(8, 8), {"input": BATCH, "name": "x", "module": 1}
    autockpt.apply(model, "1GB", inputs=batch)
    assert model(**batch).shape == (64, 8)


def test_reentrant_checkpoints_are_recorded() -> None:
    def region(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(own.norm, hidden, use_reentrant=True)
        return out

    model = told(region)
    model(BATCH).sum().backward()
    before = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in before if gradient is not None]
    autockpt.profile(model, BATCH)
    assert all(a is b for a, b in zip(before, [p.grad for p in model.parameters()], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, values, strict=True) if a is not None)


def test_a_gradient_taken_inside_forward_is_named() -> None:
    def penalty(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(hidden.pow(2).sum(), hidden, create_graph=True)
        return hidden + gradient

    with pytest.raises(ProfilingError, match="gradient inside itself"):
        autockpt.profile(told(penalty), BATCH)


def test_a_gradient_that_two_parameters_share_becomes_two() -> None:
    a, b = (nn.Parameter(torch.randn(512, 512)) for _ in range(2))
    model, batch = Told(lambda own, x: nn.functional.linear(x, own.a + own.b), a=a, b=b), torch.randn(4, 512)

    def step() -> None:
        model(batch).sum().backward()
        model.zero_grad()

    step()
    measured = autockpt.measure(step, device="cpu").step_bytes
    assert predicted_step_bytes(autockpt.profile(model, batch)) == pytest.approx(measured, rel=0.02)


def test_fake_mode_counts_gradients_that_exist() -> None:
    model = nn.Linear(8, 8)
    model(BATCH).sum().backward()
    real, fake = (autockpt.profile(model, BATCH, mode=mode).static for mode in ("measured", "fake"))
    assert fake == real
    assert real.gradient_bytes == 4 * 72


def follower(through_data: bool) -> Told:
    """Has a teacher whose weights forward moves towards the student's, as MoCo and BYOL do."""

    def follows(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for one, other in zip(own.teacher.parameters(), own.student.parameters(), strict=True):
                if through_data:
                    one.data = 0.9 * one.data + 0.1 * other.data
                else:
                    one.view(-1).lerp_(other.view(-1), 0.1)
        return nn.functional.mse_loss(own.student(hidden), own.teacher(hidden))

    return Told(follows, student=nn.Linear(8, 8), teacher=nn.Linear(8, 8).requires_grad_(False))


@pytest.mark.parametrize("mode", ["measured", "fake"])
@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (follower(through_data=True), BATCH),
        (follower(through_data=False), BATCH),
        (nn.Sequential(nn.Embedding(10, 8, max_norm=0.1), nn.Linear(8, 8)), torch.arange(10)),
    ],
    ids=["through data", "in place", "renormed"],
)
def test_a_parameter_that_forward_changes_is_put_back(model: nn.Module, batch: torch.Tensor, mode: Any) -> None:
    """Every forward of a recording moved a teacher on, so that the training that followed was another one."""
    before = {name: (each.data_ptr(), each.detach().clone()) for name, each in model.named_parameters()}
    assert not any("parameter" in note for note in autockpt.profile(model, batch, loss=torch.sum, mode=mode).notes)
    for name, parameter in model.named_parameters():
        place, value = before[name]
        assert parameter.data_ptr() == place
        assert torch.equal(parameter, value)


def test_parameters_of_one_storage_are_put_back_together() -> None:
    """As those of recurrent layers on a GPU."""
    model, together = follower(through_data=False), torch.randn(72)
    model.teacher.weight.data, model.teacher.bias.data = together[:64].view(8, 8), together[64:]
    before = together.clone()
    autockpt.profile(model, BATCH)
    assert torch.equal(together, before)


def test_a_parameter_that_forward_changes_is_put_back_at_another_batch_size_too() -> None:
    plain, planned = (follower(through_data=False) for _ in range(2))
    planned.load_state_dict(plain.state_dict())
    autockpt.apply(planned, budget="lowest")
    for model in (plain, planned):
        for rows in (8, 8, 8, 64, 64, 32):
            model.zero_grad()
            model(BATCH[:rows]).backward()
    for a, b in zip(plain.parameters(), planned.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_dictionary_whose_inside_changes_is_put_back() -> None:
    def counts(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        own.__dict__["state"]["n"] += 1
        return hidden

    model = told(counts)
    model.__dict__["state"] = {"n": 0}
    assert not autockpt.profile(model, BATCH).notes
    assert model.__dict__["state"] == {"n": 0}


def test_a_parameter_without_hooks_has_none_afterwards() -> None:
    model = nn.Linear(8, 8)
    model(BATCH).sum().backward()
    autockpt.profile(model, BATCH)
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


def hooks_itself(own: Told, x: torch.Tensor) -> Any:
    """Registers hooks in its first forward, as transformers does where hidden states are asked for."""
    if not own.installed:
        own.linear.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        own.linear.register_forward_hook(lambda module, args, kwargs, output: 2 * output, with_kwargs=True)
        own.installed = True
    return own.linear(x)


@pytest.mark.parametrize("mode", ["measured", "fake"])
def test_hooks_that_forward_registers_are_put_back(mode: Any) -> None:
    """They stayed while the flag that they are there went: the model then ran them twice."""
    torch.manual_seed(0)
    model, x = with_linear(hooks_itself, 4, installed=False), torch.ones(2, 4)
    expected = copy.deepcopy(model)(x)
    autockpt.profile(model, x, loss=torch.sum, mode=mode)
    assert torch.equal(model(x), expected)


def transformed(transform: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> nn.Module:
    """Runs a module and functions of its own under a transform of `torch.func`."""
    return with_linear(lambda own, x: x + torch.tanh(transform(own.linear, torch.tanh(x))))


def by_rows(layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    rows: torch.Tensor = torch.vmap(lambda row: torch.tanh(layer(row)))(hidden)
    return rows


def derivative(layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.func.jvp(layer, (hidden,), (torch.ones_like(hidden),))[1]
    return found


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")  # torch's own, of forward-mode derivatives
@pytest.mark.parametrize("transform", [by_rows, derivative])
def test_what_a_transform_calls_is_its_callers_own(transform: Any) -> None:
    """A batched tensor has no storage: no profile could be made of a model that runs `torch.vmap`."""
    model = nn.Sequential(nn.Linear(8, 8), *(transformed(transform) for _ in range(3)), nn.Linear(8, 1))
    recorded = autockpt.profile(model, BATCH, loss=torch.sum)
    names = {call.name for call in recorded.calls}
    assert "1" in names
    assert "1.linear" not in names
    plan = autockpt.solve(recorded, "lowest")
    assert plan.segments
    assert autockpt.verify(model, BATCH, loss=torch.sum, plan=plan).exact


def test_a_sparse_buffer_is_put_back() -> None:
    model = told(lambda own, x: x)
    model.register_buffer("mask", torch.eye(8).to_sparse())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls sparse tensors beta
        autockpt.profile(model, BATCH)
    assert torch.equal(model.mask.to_dense(), torch.eye(8))


def test_without_gradients_the_error_says_so() -> None:
    with torch.no_grad(), pytest.raises(ProfilingError, match="no_grad"):
        autockpt.profile(nn.Linear(8, 8), BATCH)


def test_a_batch_changed_in_place_and_a_generator_passed_as_argument_are_put_back() -> None:
    batch, generator = BATCH.clone(), torch.Generator().manual_seed(1)
    autockpt.profile(greedy(nn.Linear(8, 8)), (batch, generator))
    assert torch.equal(batch, BATCH)
    assert torch.equal(generator.get_state(), torch.Generator().manual_seed(1).get_state())


def test_what_no_backward_reaches_is_let_go_of() -> None:
    """What held a saved result held the node that saves it, and with it recording and model, for ever."""

    def pools(own: Told, hidden: torch.Tensor) -> Any:
        hidden = own.linear(hidden)
        return hidden.square().sum(), own.pooler(hidden).tanh()

    model = with_linear(pools, pooler=nn.Linear(8, 8))
    autockpt.profile(model, BATCH, loss=lambda outputs: outputs[0])
    weights = [weakref.ref(parameter) for parameter in model.parameters()]
    del model
    gc.collect()
    assert [weight() for weight in weights] == [None] * 4


def test_no_event_is_left_that_torch_writes_to_when_the_recording_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch writes to the event of a `record_function` as that ends, though a recording that ended inside freed it.

    Every optimizer steps in one, so that with a closure a step's recording ended there, and gradients were written to.
    """
    results: list[Any] = []
    disable = torch.autograd._disable_profiler  # type: ignore[attr-defined]

    def noted() -> Any:
        results.append(disable())
        return results[-1]

    monkeypatch.setattr(torch.autograd, "_disable_profiler", noted)

    class Named(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.profiler.record_function("a name of the user's"):
                return super().forward(x)

    autockpt.profile(Named(8, 8), BATCH)
    trees = [event for result in results for event in result.experimental_event_tree()]
    assert trees and {event.tag.name for event in trees} == {"Allocation"}
