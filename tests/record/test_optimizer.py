"""The optimizer in the profile: what it holds and what its step needs, against a real step and its measured peak."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import autockpt
from autockpt import Infeasible, ProfilingError
from autockpt.solvers import simulate
from tests.doors import (
    OptimizerMemory,
    choose_optimizers,
    device_of,
    find_candidates,
    optimizer_memory,
    planned_device,
)
from tests.toys.told import Told

CASES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.SGD, {"weight_decay": 0.1}),
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.RMSprop, {"centered": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.Adafactor, {}),
]
VARIANTS = [(kind, {**options, "foreach": foreach}) for kind, options in CASES for foreach in (False, True)]
VARIANTS += [(kind, {"fused": True}) for kind in (torch.optim.SGD, torch.optim.AdamW)]


def _named(case: object) -> str | None:
    if isinstance(case, type):
        return case.__name__
    return "-".join(f"{key}={value}" for key, value in case.items()) if isinstance(case, dict) else None


def wide() -> tuple[nn.Module, torch.Tensor]:
    """A model whose parameters are much and whose activations are little: the optimizer's step is its peak."""
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 700, bias=False)), torch.randn(4, 16)


def deep() -> tuple[nn.Module, torch.Tensor]:
    """A model whose peak is in backward, whatever the optimizer."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(6))), torch.randn(512, 16)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A model, its batch, and the levels of a step on it, that of an optimizer without memory the last."""

    model: nn.Module
    batch: torch.Tensor
    static_bytes: int
    level_bytes: tuple[int, ...]


@functools.cache
def record(build: Callable[[], tuple[nn.Module, torch.Tensor]]) -> Recorded:
    torch.manual_seed(0)
    model, batch = build()
    profile = autockpt.profile(
        model, batch, loss=torch.sum, optimizer=torch.optim.SGD(model.parameters(), foreach=False)
    )
    levels = simulate(find_candidates(profile).problem, ()).level_bytes
    return Recorded(model, batch, profile.static.total_bytes, tuple(levels))


def state_bytes(optimizer: Optimizer) -> int:
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors if isinstance(tensor, torch.Tensor))


def measured_step(model: nn.Module, batch: torch.Tensor, optimizer: Optimizer) -> int:
    """How far a training step, from no gradients on, stands above what was there before."""

    def step() -> None:
        outputs = model(batch)
        loss = outputs.sum()
        loss.backward()
        optimizer.step()

    measured = autockpt.measure(step, device="cpu").step_bytes
    optimizer.zero_grad()
    return measured


def assert_steps_as_predicted(recorded: Recorded, optimizer: Optimizer) -> OptimizerMemory:
    """Hold the first two steps against the predicted peak and state, and return what was predicted."""
    predicted = optimizer_memory(
        choose_optimizers(optimizer, recorded.model), range(100), device_of(torch.device("cpu"))
    )
    *before, after = recorded.level_bytes
    for _ in range(2):
        held_bytes = state_bytes(optimizer)  # what is missing of the state grows in the optimizer's step
        peak_bytes = max(max(before) + held_bytes, after + predicted.state_bytes + predicted.step_bytes)
        measured_bytes = measured_step(recorded.model, recorded.batch, optimizer)
        assert measured_bytes == pytest.approx(peak_bytes - recorded.static_bytes - held_bytes, rel=1e-3)
        assert state_bytes(optimizer) == predicted.state_bytes
        again = optimizer_memory(
            choose_optimizers(optimizer, recorded.model), range(100), device_of(torch.device("cpu"))
        )
        assert (again.state_bytes, again.step_bytes) == (predicted.state_bytes, predicted.step_bytes)
    return predicted


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=_named)
def test_a_step_that_peaks_in_the_optimizer_peaks_as_predicted(
    kind: Callable[..., Optimizer], options: dict[str, Any]
) -> None:
    recorded = record(wide)
    memory = assert_steps_as_predicted(recorded, kind(recorded.model.parameters(), **options))
    *before, after = recorded.level_bytes
    assert memory.step_bytes == 0 or after + memory.step_bytes > max(before)


@pytest.mark.parametrize(("kind", "options"), CASES[1::5], ids=_named)
def test_a_step_that_peaks_in_backward_peaks_as_predicted(
    kind: Callable[..., Optimizer], options: dict[str, Any]
) -> None:
    recorded = record(deep)
    *before, after = recorded.level_bytes
    assert max(before) > 2 * after
    assert_steps_as_predicted(recorded, kind(recorded.model.parameters(), **options))


def test_a_step_far_into_training_counts_where_it_needs_more_than_the_first() -> None:
    """RAdam corrects its rate from the sixth step on, with tensors that the steps before do not make."""
    recorded = record(wide)
    optimizer = torch.optim.RAdam(recorded.model.parameters(), foreach=False)
    predicted = optimizer_memory(
        choose_optimizers(optimizer, recorded.model), range(100), device_of(torch.device("cpu"))
    )
    measured_bytes = [measured_step(recorded.model, recorded.batch, optimizer) for _ in range(7)]
    assert measured_bytes[1] < measured_bytes[-1]
    stands_bytes = recorded.level_bytes[-1] - recorded.static_bytes
    assert measured_bytes[-1] == pytest.approx(stands_bytes + predicted.step_bytes, rel=1e-3)


def test_the_profile_ends_with_the_optimizer_step_and_plans_keep_to_it() -> None:
    model, batch = wide()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    profile = autockpt.profile(model, batch, optimizer=optimizer)
    problem = find_candidates(profile).problem
    assert profile.optimizer == "AdamW, before its first step"
    assert problem.steps[-1].name == "optimizer step"
    assert simulate(problem, ()).peak_step == len(problem.steps) - 1
    peak_bytes = simulate(problem, ()).peak_bytes
    assert autockpt.solve(profile, peak_bytes).segments == ()
    with pytest.raises(Infeasible) as refused:
        autockpt.solve(profile, peak_bytes - 1)
    assert refused.value.minimum_bytes == peak_bytes and "'optimizer step'" in refused.value.dominated_by
    assert [plan.peak_bytes for plan in autockpt.frontier(profile).plans] == [peak_bytes]
    lighter = autockpt.profile(model, batch, optimizer="sgd")
    assert simulate(find_candidates(lighter).problem, ()).peak_bytes < peak_bytes - profile.static.optimizer_bytes


def test_whole_planned_steps_keep_within_a_budget_that_counts_the_optimizer() -> None:
    model, batch = deep()
    optimizer = torch.optim.Adam(model.parameters())
    profile = autockpt.profile(model, batch, optimizer=optimizer)
    static_bytes = profile.static.total_bytes - profile.static.optimizer_bytes
    budget_bytes = autockpt.solve(profile, "1GB").peak_bytes * 4 // 5
    for solver in ("chain", "ilp", "articulation", "auto"):
        plan = autockpt.solve(profile, budget_bytes, solver=solver)
        assert plan.segments and plan.peak_bytes <= budget_bytes
        assert plan.lower_bound_seconds is not None and plan.lower_bound_seconds <= plan.recompute_seconds
        autockpt.apply(model, plan=plan)
        held_bytes = static_bytes + state_bytes(optimizer)  # none, in the first of these steps
        assert held_bytes + measured_step(model, batch, optimizer) <= plan.peak_bytes * 1.001


def test_parameters_that_get_no_gradient_get_no_state() -> None:
    partly = Told(lambda own, x: own.used(x), used=nn.Linear(8, 8), unused=nn.Linear(8, 8))
    model, batch = partly, torch.randn(2, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    told = autockpt.profile(model, batch, optimizer=optimizer).static.optimizer_bytes
    measured_step(model, batch, optimizer)
    assert told == state_bytes(optimizer)


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.NAdam, torch.optim.Adafactor])
def test_the_optimizer_is_left_as_it_is(kind: Callable[..., Optimizer], stepped: bool) -> None:
    model, batch = deep()
    optimizer = kind(model.parameters(), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    fired: list[object] = []
    optimizer.register_step_pre_hook(lambda *_: fired.append(1))
    optimizer.register_step_post_hook(lambda *_: fired.append(1))
    if stepped:
        model(batch).sum().backward()
        optimizer.step()
        fired.clear()
    before = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict(), dict(model.named_parameters())))
    generator = torch.get_rng_state()
    attributes, keys = dict(vars(optimizer)), list(optimizer.state)
    versions = [parameter._version for parameter in model.parameters()]
    autockpt.profile(model, batch, optimizer=optimizer)
    after = optimizer.state_dict(), scheduler.state_dict(), dict(model.named_parameters())
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), generator)
    assert [parameter._version for parameter in model.parameters()] == versions
    assert vars(optimizer) == attributes and list(map(id, optimizer.state)) == list(map(id, keys))
    assert not fired


def test_names_stand_for_defaults() -> None:
    model, batch = wide()
    named = autockpt.profile(model, batch, optimizer="aDaMw")
    given = autockpt.profile(model, batch, optimizer=torch.optim.AdamW(model.parameters()))
    assert named.static == given.static and named.optimizer_step_bytes == given.optimizer_step_bytes
    assert (named.optimizer, given.optimizer) == (
        "aDaMw, by its defaults: an estimate",
        "AdamW, before its first step",
    )


def test_what_is_no_optimizer_of_the_model_is_refused() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    with pytest.raises(ProfilingError, match="'adamm'; did you mean 'adam'"):
        autockpt.profile(model, torch.randn(2, 4), optimizer="adamm")
    with pytest.raises(ProfilingError, match="SGD trains 2 parameters, and none of them is one of the 2 of Linear"):
        autockpt.profile(model, torch.randn(2, 4), optimizer=torch.optim.SGD(other.parameters()))
    with pytest.raises(ProfilingError, match="found a Linear"):
        autockpt.profile(model, torch.randn(2, 4), optimizer=other)  # type: ignore[arg-type]
    with pytest.raises(ProfilingError, match="Muon cannot be built with its defaults"):
        autockpt.profile(model, torch.randn(2, 4), optimizer="muon")


def test_an_optimizer_that_trains_more_counts_whole_and_several_add_up() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    both = torch.optim.Adam([*model.parameters(), *other.parameters()])
    profile = autockpt.profile(model, torch.randn(2, 4), optimizer=both)
    alone = autockpt.profile(model, torch.randn(2, 4), optimizer="adam")
    assert profile.static.optimizer_bytes == 2 * alone.static.optimizer_bytes
    assert "2 of the 4 parameters that Adam trains are not the model's; its state counts whole" in profile.notes
    parts = [torch.optim.Adam([parameter]) for parameter in model.parameters()]
    several = autockpt.profile(model, torch.randn(2, 4), optimizer=parts)
    assert several.static == alone.static
    assert several.optimizer == "Adam, before its first step; Adam, before its first step"
    each = [autockpt.profile(model, torch.randn(2, 4), optimizer=part).optimizer_step_bytes for part in parts]
    assert several.optimizer_step_bytes == max(each) < sum(each)  # they step one after the other


class Wrapped(Optimizer):
    """Steps by another optimizer, whose groups it shares."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


class Hidden(Wrapped):
    """Hides that other optimizer from whoever looks for it."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner)
        self.inner = [inner]  # type: ignore[assignment]

    def step(self, closure: Any = None) -> Any:
        return self.inner[0].step(closure)  # type: ignore[index]


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam, Wrapped, Hidden])
def test_a_step_that_cannot_be_followed_is_an_estimate_and_does_not_happen(kind: Callable[..., Optimizer]) -> None:
    model, batch = deep()
    inner = torch.optim.SGD(model.parameters())
    model(batch).sum().backward()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = kind(inner) if kind in (Wrapped, Hidden) else kind(model.parameters())
    profile = autockpt.profile(model, batch, optimizer=optimizer)
    assert profile.optimizer.endswith("by its options: an estimate") and profile.optimizer_step_bytes == 0
    assert any("could not be followed" in note for note in profile.notes)
    assert all(map(torch.equal, model.parameters(), before))


def test_on_a_gpu_all_parameters_are_updated_at_once_and_sizes_round_up() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    profile = autockpt.profile(model, torch.randn(2, 30, device="meta"), mode="fake", optimizer="adamw")
    rounded_bytes = 2 * (4096 + 512)  # of 3600 and 120 bytes each
    assert profile.static.optimizer_bytes == 2 * rounded_bytes  # the counters of steps are on the host
    assert profile.optimizer_step_bytes == rounded_bytes
    one_by_one = 2 * 4096 + 512  # the last bias's denominator lives until the next weight has its own
    expected = {True: (2 * rounded_bytes + 4 * 512, 0), False: (2 * rounded_bytes, one_by_one)}
    for fused, needed in expected.items():
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        memory = optimizer_memory(choose_optimizers(optimizer, model), range(4), planned_device())
        assert (memory.state_bytes, memory.step_bytes) == needed


class Passing(Optimizer):
    """Has no groups of its own, as wrappers of training frameworks."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups


def test_a_wrapper_stands_for_what_it_wraps() -> None:
    model, batch = wide()
    inner = torch.optim.Adam(model.parameters())
    wrapped = autockpt.profile(model, batch, optimizer=Passing(inner))
    alone = autockpt.profile(model, batch, optimizer=inner)
    assert (wrapped.static, wrapped.optimizer) == (alone.static, alone.optimizer)


@pytest.mark.parametrize("searches", [None, "strong_wolfe"])
@pytest.mark.parametrize(("iterations", "noisy"), [(1, True), (1, False), (3, False)])
def test_lbfgs_holds_no_more_while_its_closure_runs_than_is_counted(
    searches: Any, iterations: int, noisy: bool
) -> None:
    """Of a line's search up to seven copies of all parameters were not counted; without iterations three too many."""
    torch.manual_seed(0)
    model, made = nn.Sequential(nn.Linear(33, 37), nn.Tanh(), nn.Linear(37, 5)), torch.randn(16, 33)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, iterations, history_size=3, line_search_fn=searches)
    own, shapes = {id(each) for each in model.parameters()}, {each.shape for each in model.parameters()}
    total = sum(each.numel() for each in model.parameters())
    counted_bytes = optimizer_memory(
        choose_optimizers(optimizer, model), range(4), device_of(torch.device("cpu"))
    ).state_bytes
    held: list[int] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        batch = torch.randn(16, 33) if noisy else made
        loss: Tensor = (model(batch) - batch[:, :5]).square().mean()
        alive = (each for each in gc.get_objects() if type(each) is Tensor and id(each) not in own)
        held.append(sum(each.nbytes for each in alive if each.shape == (total,) or each.shape in shapes))
        loss.backward()
        return loss

    for _ in range(20):
        optimizer.step(closure)
    assert 0.65 * counted_bytes < max(held) <= counted_bytes
