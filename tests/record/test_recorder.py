"""Recording sees what is there and leaves no trace."""

from __future__ import annotations

import queue
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy
import pytest
import torch
from torch import nn

import autockpt
from autockpt import NotApplicable, ProfilingError
from autockpt.solvers import simulate
from tests.doors import Clock, find_candidates, timing, training_step
from tests.rows import daily
from tests.toys.told import Told, with_linear
from tests.zoo import DAILY, ZOO, build

MODES = ["measured", "fake"]
PLAIN_PLACES = [("forward_end", 0), ("backward_end", 0)]


class Stateful(nn.Module):
    """A model that touches everything that a recording must put back."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8))
        self.frozen = nn.Linear(8, 8).requires_grad_(False).eval()
        self.calls = 0
        self.cache: torch.Tensor | None = None
        self.history: list[int] = []
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.cache = hidden.mean()
        self.history.append(self.calls)
        noise = torch.rand(hidden.shape, generator=self.generator) + random.random() + numpy.random.rand()
        out: torch.Tensor = self.frozen(self.body(hidden)) + noise
        return out


def trace(model: Stateful) -> dict[str, Any]:
    """Everything about a model and its surroundings that a recording could disturb."""
    found: dict[str, Any] = {
        "cpu generator": torch.get_rng_state(),
        "own generator": model.generator.get_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state(legacy=False),
        "calls": model.calls,
        "cache": model.cache,
        "ids": [id(tensor) for tensor in (*model.parameters(), *model.buffers())],
    }
    for name, module in model.named_modules():
        found[f"{name} attributes"] = sorted(module.__dict__)
        found[f"{name} training"] = module.training
        found[f"{name} hooks"] = [len(v) for k, v in sorted(module.__dict__.items()) if k.endswith("_hooks")]
    for name, tensor in model.state_dict().items():
        found[name] = tensor.clone()
    for name, parameter in model.named_parameters():
        found[f"{name} gradient"] = None if parameter.grad is None else parameter.grad.clone()
    return found


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, numpy.ndarray):
        return bool(numpy.array_equal(a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_recording_leaves_no_trace(mode: Any, with_gradients: bool) -> None:
    model, batch = Stateful(), torch.randn(4, 8)
    if with_gradients:
        model(batch).sum().backward()
    stepped: list[int] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: stepped.append(1))
    before = trace(model)
    profile = autockpt.profile(model, batch, mode=mode)
    after = trace(model)
    assert [name for name in before if not same(before[name], after[name])] == []
    assert stepped == []
    assert not any("put back" in note for note in profile.notes)


@pytest.mark.parametrize("mode", MODES)
def test_an_error_in_forward_is_the_users_own_and_leaves_no_trace(mode: Any) -> None:
    model = Stateful()
    model.body[0].weight.grad = torch.ones(16, 8)
    batch = torch.randn(4, 9)
    before = trace(model)
    with pytest.raises(RuntimeError, match=r"shape|reduction dim"):
        autockpt.profile(model, batch, mode=mode)
    after = trace(model)
    assert [name for name in before if not same(before[name], after[name])] == []


def test_an_applied_plan_is_set_aside_while_recording() -> None:
    model, batch = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU())), torch.randn(4, 8)
    plain = autockpt.profile(model, batch)
    plan = autockpt.Plan.of(["1"])
    autockpt.apply(model, plan=plan)
    assert len(autockpt.profile(model, batch).saves) == len(plain.saves)
    assert autockpt.plan_of(model) == plan


def test_a_running_profiler_is_named_and_not_emptied() -> None:
    model, batch = nn.Linear(8, 8), torch.randn(4, 8)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        pytest.raises(ProfilingError, match="profiler is already running"),
    ):
        autockpt.profile(model, batch)
    assert profiler.events() is not None


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(NotApplicable, match="no parameter that requires a gradient"):
        autockpt.profile(nn.Linear(8, 8).requires_grad_(False), torch.randn(4, 8))


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(ProfilingError, match="one element"):
        autockpt.profile(nn.Linear(8, 8), torch.randn(4, 8), loss=lambda out: out)


@pytest.mark.parametrize("name", daily(ZOO, DAILY))
def test_the_plain_peak_is_predicted_to_the_thousandth(name: str) -> None:
    case = build(name, short=True)
    case.step()
    profile = autockpt.profile(case.model, case.kwargs)
    predicted = simulate(find_candidates(profile).problem, ()).peak_bytes - profile.static.total_bytes
    assert predicted == pytest.approx(autockpt.measure(case.step, device="cpu").step_bytes, rel=1e-3)


def test_forward_takes_as_long_as_in_a_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed is a forward with stamps, which is slower."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    stamped, whole = timing._fastest, dict(zip(PLAIN_PLACES, (2.0, 5.0), strict=True))

    def fastest(step: Any, clock: Any, passes: Any, *, retain: bool) -> Any:
        return whole if passes == [PLAIN_PLACES] else stamped(step, clock, passes, retain=retain)

    monkeypatch.setattr(timing, "_fastest", fastest)
    profile = autockpt.profile(model, torch.randn(64, 64))
    assert profile.plain_seconds == 5.0
    assert 1.0 < profile.calls[0].exit_seconds <= 2.0
    assert all(0 <= call.enter_seconds < call.exit_seconds <= 2.0 for call in profile.calls)
    assert profile.saves.seconds == tuple(sorted(profile.saves.seconds))


def test_where_stamps_are_cheap_one_step_tells_all_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "STAMP_SECONDS", 0.0)
    monkeypatch.setattr(timing, "REPEATS", 1)
    forwards: queue.SimpleQueue[bool] = queue.SimpleQueue()  # which recording does not put back

    def loss(output: torch.Tensor) -> torch.Tensor:
        output.register_hook(lambda _: forwards.put(False))
        forwards.put(True)
        return output.sum()

    profile = autockpt.profile(
        nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(64, 64), loss=loss
    )
    assert [forwards.get() for _ in range(forwards.qsize())] == [True, False, True, False]
    assert all(0 < call.enter_seconds < call.exit_seconds < profile.plain_seconds for call in profile.calls)
    assert all(seconds > 0 for seconds in profile.functions.seconds)


@pytest.mark.parametrize("whole", [True, False])
def test_only_where_a_whole_step_fits_do_timed_forwards_keep_what_they_save(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamped = timing._fastest

    def fastest(*args: Any, retain: bool) -> Any:
        if retain and not whole:
            raise torch.OutOfMemoryError
        return stamped(*args, retain=retain)

    monkeypatch.setattr(timing, "_fastest", fastest)
    packed: queue.SimpleQueue[object] = queue.SimpleQueue()  # which recording does not put back

    def loss(output: torch.Tensor) -> torch.Tensor:
        assert output.grad_fn is not None
        packed.put(output.grad_fn._raw_saved_result.data)  # type: ignore[attr-defined]
        return output.sum()

    autockpt.profile(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8), loss=loss)
    packed.get()  # the first forward is the recorded one
    kept = [isinstance(packed.get(), torch.Tensor) for _ in range(packed.qsize())]
    assert kept and all(each == whole for each in kept)


def test_a_step_is_timed_again_after_the_first_which_finds_fresh_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ENOUGH_STEP_SECONDS", 0.0)
    readings = iter([[0.0, 0.4, 0.9], [0.0, 0.2, 0.5], [0.0, 0.1, 0.2]])
    clock = cast("Clock", SimpleNamespace(behind=False, stamp=lambda: None, seconds=lambda _: next(readings)))
    step = training_step(nn.Linear(2, 2), torch.randn(1, 2), None)
    fastest = timing._fastest(step, clock, [PLAIN_PLACES], retain=False)
    assert fastest == dict(zip(PLAIN_PLACES, (0.2, 0.5), strict=True))


def test_gradients_that_exist_do_not_grow() -> None:
    model, batch = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))), torch.randn(2, 256)

    def accumulate() -> None:
        model(batch).sum().backward()

    accumulate()
    profile = autockpt.profile(model, batch)
    predicted = simulate(find_candidates(profile).problem, ()).peak_bytes - profile.static.total_bytes
    assert profile.static.gradient_bytes == profile.static.parameter_bytes
    assert predicted == pytest.approx(autockpt.measure(accumulate, device="cpu").step_bytes, rel=0.02)


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "glue"])
def test_fake_mode_agrees_with_the_real_step(name: str) -> None:
    case = build(name, short=True)
    real, fake = (autockpt.profile(case.model, case.kwargs, mode=mode) for mode in ("measured", "fake"))
    peaks = [simulate(find_candidates(p).problem, ()).peak_bytes for p in (real, fake)]
    assert (fake.mode, fake.device) == ("fake", "a100")
    assert fake.static == real.static
    assert [call.key for call in fake.calls] == [call.key for call in real.calls]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.02)
    assert fake.plain_seconds > 0


def test_fake_mode_records_a_model_without_memory() -> None:
    with torch.device("meta"):
        model, batch = nn.Sequential(nn.Linear(2**14, 2**14), nn.GELU()), torch.empty(8, 2**14)
    profile = autockpt.profile(model, batch, mode="fake", device="h100")
    assert profile.static.parameter_bytes == 4 * (2**28 + 2**14)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())


def test_a_module_used_twice_gives_two_calls() -> None:
    shared = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    profile = autockpt.profile(nn.Sequential(shared, nn.ReLU(), shared), torch.randn(4, 8))
    assert [call.key for call in profile.calls if call.name == "0"] == ["0#0", "0#1"]
    assert len({call.signature for call in profile.calls if call.name == "0"}) == 1


def reads_attribute(own: Told, x: torch.Tensor) -> Any:
    return own.linear(x + 1).sigmoid() * own.seen


def moves_attribute(own: Told, x: torch.Tensor) -> Any:
    out = own.linear(x + 1).sigmoid()
    own.seen.mul_(0.5)
    return out * own.seen


def changes_argument(own: Told, x: torch.Tensor) -> Any:
    out = own.linear(x + 1).sigmoid()  # backward does not need `x`, so it may change
    x.mul_(2)
    return out


def seeds_a_fork(own: Told, x: torch.Tensor) -> Any:
    out = own.linear(x + 1).sigmoid()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return out * torch.rand(8)


def with_closure(act: Callable[..., Any]) -> nn.Module:
    made = with_linear(act)
    made.seen = torch.ones(8)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), made, nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("act", "reason"),
    [(moves_attribute, "no argument, parameter or buffer"), (changes_argument, "changed in place")],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(act: Callable[..., Any], reason: str) -> None:
    model = with_closure(act)
    profile = autockpt.profile(model, torch.randn(64, 8))
    candidates = find_candidates(profile)
    refused = {candidates.index.nodes[call].key: why for call, why in candidates.refused}
    assert reason in refused["2#0"]
    assert "0#0" not in refused


def test_a_tensor_in_an_attribute_that_no_step_changes_is_read_by_a_candidate() -> None:
    model = with_closure(reads_attribute)
    assert find_candidates(autockpt.profile(model, torch.randn(64, 8))).refused == ()


def test_a_fork_that_seeds_the_generator_itself_is_offered() -> None:
    model = with_closure(seeds_a_fork)
    assert find_candidates(autockpt.profile(model, torch.randn(64, 8))).refused == ()


def test_a_model_on_several_devices_is_named_as_such() -> None:
    model = torch.nn.Linear(4, 4)
    model.elsewhere = torch.nn.Linear(4, 4, device="meta")
    assert (
        "parameters lie on meta too, and only what is allocated on cpu is seen"
        in autockpt.profile(model, torch.randn(2, 4), loss=torch.sum).notes
    )


def test_a_function_may_give_no_gradient_to_a_parameter_that_has_one_already() -> None:
    """It was an AttributeError of the recorder's."""

    class Withholds(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x * weight

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            return gradients[0], None

    weight = nn.Parameter(torch.ones(8))
    model = with_linear(lambda own, x: Withholds.apply(own.linear(x), own.weight), weight=weight)  # type: ignore[no-untyped-call]
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    assert autockpt.profile(model, torch.randn(4, 8)).mode == "measured"


@pytest.mark.parametrize("mode", ["measured", "fake"])
def test_outputs_that_a_loop_lets_go_of_do_not_count_in_the_optimizers_step(mode: Any) -> None:
    wide = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4096))
    inputs, loss = torch.randn(64, 8), lambda outputs: outputs.square().mean()
    held, freed = (
        autockpt.profile(wide, inputs, loss=loss, optimizer="adamw", mode=mode, holds_outputs=holds)
        for holds in (True, False)
    )
    # The optimizer's step is the last of the timeline, and the outputs are 64 x 4096 numbers of four bytes.
    last_held, last_freed = (
        autockpt.solve(each, 2**40).timeline(each).steps[-1].output_bytes for each in (held, freed)
    )
    assert last_held - last_freed == 64 * 4096 * 4
