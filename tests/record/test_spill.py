"""A step whose saves are spilled is recorded as the real one, and never holds them."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Infeasible, Profile, ProfilingError
from autockpt.solvers import Problem, simulate, solve
from tests.doors import (
    AllocatorEvent,
    AllocatorTape,
    Arguments,
    Cpu,
    SpilledStep,
    device_of,
    find_candidates,
    record_step,
    recorder,
    timing,
    training_step,
)
from tests.fuzz.timeless import without_times
from tests.record.plainly import dropping, held
from tests.record.played import as_cuda
from tests.record.small import ROWS, warm
from tests.toys.told import Told, with_linear

WIDTH = 16


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Do not time what is recorded."""
    with without_times():
        yield


def recorded(profile: Profile) -> dict[str, Any]:
    """All that a profile says, but for seconds and notes."""
    found: dict[str, Any] = msgspec.to_builtins(profile)
    for part in (found, *found["calls"], *(found[table] for table in ("saves", "functions", "ops"))):
        for name in [name for name in part if name.endswith("seconds")]:
            del part[name]
    return {name: value for name, value in found.items() if name not in ("notes", "recorded")}


def assert_same(model: nn.Module, batch: Any) -> Profile:
    """Hold a profile against one whose step held what it saved, and a forward that dropped it."""
    spilled, real, forward = autockpt.profile(model, batch), held(model, batch), dropping(model, batch)
    ours, theirs = recorded(spilled), recorded(real)
    natural = ours["tensors"].pop("natural")
    del theirs["tensors"]["natural"]
    if vars(recorder)["device_of"] is not device_of:  # played; what was handed out, and not asked for, varies
        del ours["tensors"]["bytes"], theirs["tensors"]["bytes"], ours["static"], theirs["static"]
    assert ours == theirs
    end = spilled.forward_ticks
    assert end == next(forward.of_kind("forward_end")).tick
    born = [i for i, tick in enumerate(spilled.tensors.birth) if tick < end]
    assert [min(natural[i], end + 1) for i in born] == [min(forward.natural[i], end + 1) for i in born]
    return spilled


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record on the CPU as it is, and played as CUDA."""
    with as_cuda() if request.param == "cuda" else contextlib.nullcontext():
        yield


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ROWS)
def test_a_spilled_step_is_recorded_as_the_plain_one(name: str) -> None:
    case = warm(name)
    assert_same(case.model, case.kwargs)


def lowest(problem: Problem, solver: str = "auto") -> tuple[int, ...]:
    """What the solver's plan with the lowest peak chooses."""
    with pytest.raises(Infeasible) as caught:
        solve(problem, 1, solver=solver)
    assert caught.value.chosen is not None
    return caught.value.chosen


def highest_bytes(events: list[AllocatorEvent]) -> int:
    """How far the level rose above that at the start."""
    live: dict[int, int] = {}
    level = highest = 0
    for event in events:
        if event.kind == "alloc":
            live[event.key] = event.bytes
            level += event.bytes
        elif event.kind == "free":
            level -= live.pop(event.key, 0)
        highest = max(highest, level)
    return highest


@pytest.mark.parametrize("name", ["gpt2", "unet", "glue"])
def test_no_run_of_a_spilled_profile_holds_more_than_the_deepest_plan(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = warm(name)
    profile = autockpt.profile(case.model, case.kwargs)
    deepest = simulate(problem := find_candidates(profile).problem, lowest(problem)).peak_bytes
    plain_bytes = autockpt.measure(case.step, device="cpu").step_bytes
    seen: dict[str, int] = {}

    class Tape(AllocatorTape):
        def events(self) -> list[AllocatorEvent]:
            seen["the step"] = highest_bytes(super().events())
            return super().events()

    class Taped(Cpu):
        def tape(self) -> AllocatorTape:
            return Tape(self.at)

    def stamped(*args: Any, retain: bool) -> Any:
        if retain:
            raise torch.OutOfMemoryError("there is no room for what a plain step holds")
        results = []
        found = autockpt.measure(lambda: results.append(original(*args, retain=False)), device="cpu")
        seen["what is timed"] = found.step_bytes
        return results[0]

    original = timing._fastest
    monkeypatch.setattr(recorder, "device_of", lambda _: Taped())
    monkeypatch.setattr(timing, "_fastest", stamped)
    autockpt.profile(case.model, case.kwargs)
    assert set(seen) == {"the step", "what is timed"}
    assert max(seen.values()) <= deepest - profile.static.total_bytes
    assert max(seen.values()) < 0.8 * plain_bytes


class Given(torch.autograd.Function):
    """Its gradient is what it saved, read twice. Run last in forward, it is the first to hand one back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        assert torch.equal(ctx.saved_tensors[0], ctx.saved_tensors[0])
        return ctx.saved_tensors[0]


def odd(between: Callable[[Tensor], Tensor]) -> nn.Module:
    """Two layers around one function of the hidden values."""
    torch.manual_seed(0)
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return Told(lambda own, x: own.last(between(own.first(x))), first=first, last=last)


def constant_that_dies(x: Tensor) -> Tensor:
    scale = torch.full((WIDTH,), 2.0)
    out = x * scale
    del scale
    return out.relu_()


GIVEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a gradient that is a saved tensor": lambda x: x.exp() + Given.apply(x),  # type: ignore[no-untyped-call]
    "a gradient that is a tensor saved twice": lambda x: (y := x.tanh()).sigmoid() * Given.apply(y),  # type: ignore[no-untyped-call]
}


ODD: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: (torch.fft.fft(x).conj() * torch.fft.fft(x.sin())).abs(),
    lambda x: torch.where(x > 0, x, x * x).sort(-1).values.masked_fill(x > 1, 0.5),
    lambda x: (x.bfloat16() * x.bfloat16().exp()).float(),
    lambda x: (x[:1].expand_as(x) * x).flip(-1) * x.t().contiguous().t(),
    lambda x: F.gelu(x.view(-1, 4, 2, 2).to(memory_format=torch.channels_last).exp().mul(2.0)).reshape(-1, WIDTH),
    lambda x: torch.cat([a * b.exp() for a, b in zip(x.chunk(4, -1), x.split(4, -1), strict=True)], -1),
    lambda x: F.dropout(x.sin().add_(1), 0.5, inplace=True) * (x * 2).relu_(),
    constant_that_dies,
    lambda x: checkpoint(lambda y: y.exp().sin(), x, use_reentrant=False),
    lambda x: checkpoint(lambda y: y.exp().sin(), x, use_reentrant=True),
)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("existing", [False, True], ids=["first", "accumulating"])
@pytest.mark.parametrize("kind", GIVEN)
def test_a_saved_tensor_that_becomes_a_gradient_lives_as_long_as_that(kind: str, existing: bool) -> None:
    model, x = odd(GIVEN[kind]), torch.randn(8, WIDTH)
    if existing:
        model(x).sum().backward()
    assert_same(model, x)


@pytest.mark.usefixtures("device")
def test_views_types_copies_and_regions_of_every_kind() -> None:
    assert_same(nn.Sequential(*map(odd, ODD)), torch.randn(8, WIDTH))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_is_not_spilled_counts_as_held_to_its_release() -> None:
    model, x = odd(lambda x: torch.sparse.mm(torch.eye(8).to_sparse(), x).tanh()), torch.randn(8, WIDTH)
    real, spilled = held(model, x).tensors, autockpt.profile(model, x).tensors
    assert (real.bytes, real.birth, real.death) == (spilled.bytes, spilled.birth, spilled.death)
    forward = dropping(model, x)
    births = sum(tick < forward.ticks for tick in spilled.birth)
    assert all(a <= b for a, b in zip(forward.natural[:births], spilled.natural, strict=False))


@pytest.mark.usefixtures("device")
def test_a_batch_that_wants_a_gradient() -> None:
    assert_same(odd(torch.tanh), torch.randn(8, WIDTH, requires_grad=True))


def tight(*, in_backward: bool) -> nn.Module:
    """Runs out of memory where more than three of its layers' results are alive, or in backward."""

    def fail(_: object = None) -> None:
        raise torch.OutOfMemoryError("too much")

    def act(own: Told, x: Tensor) -> Tensor:
        made: list[StorageWeakRef] = []
        for layer in own.layers:
            x = layer(x).exp().clamp(-1, 1)
            made.append(StorageWeakRef(x.untyped_storage()))
            if in_backward:
                x.register_hook(fail)
            elif sum(not each.expired() for each in made) > 3:
                fail()
        return x

    return Told(act, layers=nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8)))


def test_a_step_that_does_not_fit_is_recorded_all_the_same() -> None:
    model, x = tight(in_backward=False), torch.randn(4, WIDTH)
    with pytest.raises(torch.OutOfMemoryError):
        model(x)
    assert autockpt.profile(model, x).plain_seconds > 0


def train_tightly(model: nn.Module) -> None:
    """Train a step of which what is saved waits in a file."""
    x = torch.randn(4, WIDTH)
    SpilledStep(model, x.device, x).forward(x, lambda: model(x)).sum().backward()


def are_closed(descriptors: list[int]) -> list[bool]:
    closed = []
    for each in descriptors:
        try:
            os.fstat(each)
        except OSError:
            closed.append(True)
        else:
            closed.append(False)
    return closed


def test_the_file_is_closed_when_the_step_is_over(descriptors: list[int]) -> None:
    train_tightly(odd(torch.tanh))
    assert are_closed(descriptors) == [True]


def test_the_file_is_closed_when_the_step_fails(descriptors: list[int]) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        train_tightly(tight(in_backward=True))
    del caught  # whose traceback holds what ran
    gc.collect()
    assert are_closed(descriptors) == [True]


FULL = pathlib.Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FULL.open("r+b", buffering=0))
    with pytest.raises(ProfilingError, match=r"took 0 bytes and not \d+ more .*TMPDIR"):
        train_tightly(odd(torch.tanh))


def test_a_folder_that_is_missing_is_named_before_anything_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    ran: list[Tensor] = []

    def middle(x: Tensor) -> Tensor:
        ran.append(x)
        return x

    model = odd(middle)
    with pytest.raises(ProfilingError, match="TMPDIR"):
        train_tightly(model)
    assert not ran


def mixed(*, inside: bool) -> nn.Module:
    """Runs under autocast of its own, or else under that of the caller; uses one weight twice."""
    torch.manual_seed(0)

    def act(own: Told, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16) if inside else contextlib.nullcontext():
            for layer in (*own.layers, *own.layers):
                x = layer(x).tanh()
            with torch.autocast("cpu", enabled=False):  # its backward would be in half precision inside a region
                return own.layers[0](x.float())

    return Told(act, layers=nn.ModuleList(nn.Linear(8, 8) for _ in range(4)))


@pytest.mark.parametrize("mode", ["measured", "fake"])
def test_in_the_middle_of_the_callers_autocast_a_step_casts_as_under_its_own(mode: Any) -> None:
    x = torch.randn(64, 8)
    own = autockpt.profile(mixed(inside=True), x, mode=mode)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed(inside=False)(x)
        model = mixed(inside=False)
        model(x)  # the caller's own forward has cast its weights
        callers = autockpt.profile(model, x, mode=mode)
    assert callers.tensors.bytes == own.tensors.bytes
    assert callers.tensors.birth == own.tensors.birth
    assert callers.saves.release == own.saves.release
    assert not any("differently" in note for note in callers.notes)
    peaks = [simulate(find_candidates(each).problem, ()).peak_bytes for each in (own, callers)]
    assert peaks[0] == peaks[1]


def test_a_step_may_be_recorded_from_positional_arguments_and_keywords() -> None:
    model = with_linear(lambda own, x, *, scale: own.linear(x * scale).tanh(), WIDTH)
    x, scale = torch.randn(4, WIDTH), torch.randn(WIDTH)
    step = training_step(model, Arguments((x,), {"scale": scale}), None)
    expected = autockpt.profile(model, {"x": x, "scale": scale})
    assert recorded(record_step(step)) == recorded(expected)
