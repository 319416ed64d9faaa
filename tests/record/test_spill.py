"""A step whose saves are spilled is recorded as the real one, and never holds them."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Infeasible, Plan, Profile, ProfilingError
from autockpt._choose.candidates import find_candidates
from autockpt._choose.solve import segments_of
from autockpt._record import recorder
from autockpt._record.recorder import record_step
from autockpt._record.step import step_of
from autockpt._record.tape import AllocatorTape, Event
from autockpt.solvers import SOLVERS, Problem, simulate
from tests.fuzz.timeless import without_times
from tests.record.small import MODELS, warm

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
    """Hold a spilled profile against a real one; return the spilled one."""
    real, spilled = (autockpt.profile(model, batch, mode=mode) for mode in ("real", "spill"))
    assert recorded(spilled) == recorded(real)
    return spilled


@pytest.mark.parametrize("name", MODELS)
def test_a_spilled_step_is_recorded_as_the_real_one(name: str) -> None:
    case = warm(name)
    spilled = assert_same(case.model, case.kwargs)
    assert any("temporary file" in note for note in spilled.notes)


def test_plans_have_the_same_peak_in_both_profiles() -> None:
    case = warm("gpt2")
    profiles = [autockpt.profile(case.model, case.kwargs, mode=mode) for mode in ("real", "spill")]
    candidates = find_candidates(profiles[0])
    problem = candidates.problem
    chosen = [(), *(lowest(problem, solver) for solver in ("all", "sqrt", "auto"))]
    plain, deepest = (simulate(problem, each).peak_bytes for each in (chosen[0], chosen[-1]))
    chosen += [SOLVERS["auto"](problem, deepest + (plain - deepest) // share).chosen for share in (2, 5)]
    # By name: other seconds make other menus, so that a number does not stand for the same in both.
    plans = [Plan(segments=segments_of(candidates, each)) for each in chosen]
    peaks = [[plan.timeline(profile).peak_bytes for plan in plans] for profile in profiles]
    assert peaks[0] == peaks[1] == [simulate(problem, each).peak_bytes for each in chosen]
    assert all(peak < plain for peak in peaks[0][1:])


def lowest(problem: Problem, solver: str = "auto") -> tuple[int, ...]:
    """What the solver's plan with the lowest peak chooses."""
    with pytest.raises(Infeasible) as caught:
        SOLVERS[solver](problem, 1)
    assert caught.value.chosen is not None
    return caught.value.chosen


def highest_bytes(events: list[Event]) -> int:
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
        def events(self) -> list[Event]:
            seen["the step"] = highest_bytes(super().events())
            return super().events()

    def measured(run: Callable[..., Any]) -> Callable[..., Any]:
        def measuring(*args: Any, **kwargs: Any) -> Any:
            results = []
            found = autockpt.measure(lambda: results.append(run(*args, **kwargs)), device="cpu")
            seen[run.__name__] = found.step_bytes
            return results[0]

        return measuring

    monkeypatch.setattr(recorder, "AllocatorTape", Tape)
    for name in ("observe_structure", "stamped_seconds", "step_seconds"):
        monkeypatch.setattr(recorder, name, measured(getattr(recorder, name)))
    autockpt.profile(case.model, case.kwargs, mode="spill")
    assert set(seen) == {"the step", "observe_structure", "stamped_seconds"}
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


class Odd(nn.Module):
    """Two layers around one function of the hidden values."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), between

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.between(self.first(x)))
        return out


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


@pytest.mark.parametrize("existing", [False, True], ids=["first", "accumulating"])
@pytest.mark.parametrize("kind", GIVEN)
def test_a_saved_tensor_that_becomes_a_gradient_lives_as_long_as_that(kind: str, existing: bool) -> None:
    model, x = Odd(GIVEN[kind]), torch.randn(8, WIDTH)
    if existing:
        model(x).sum().backward()
    assert_same(model, x)


def test_views_types_copies_and_regions_of_every_kind() -> None:
    assert_same(nn.Sequential(*map(Odd, ODD)), torch.randn(8, WIDTH))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_what_is_not_spilled_counts_as_held_to_its_release() -> None:
    model, x = Odd(lambda x: torch.sparse.mm(torch.eye(8).to_sparse(), x).tanh()), torch.randn(8, WIDTH)
    real, spilled = (autockpt.profile(model, x, mode=mode).tensors for mode in ("real", "spill"))
    assert (real.bytes, real.birth, real.death) == (spilled.bytes, spilled.birth, spilled.death)
    assert all(a <= b for a, b in zip(real.natural, spilled.natural, strict=True))


def test_a_batch_that_wants_a_gradient() -> None:
    assert_same(Odd(torch.tanh), torch.randn(8, WIDTH, requires_grad=True))


class Tight(nn.Module):
    """Runs out of memory where more than three of its layers' results are alive, or in backward."""

    def __init__(self, *, in_backward: bool) -> None:
        super().__init__()
        self.layers, self.in_backward = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8)), in_backward

    def forward(self, x: Tensor) -> Tensor:
        made: list[StorageWeakRef] = []
        for layer in self.layers:
            x = layer(x).exp().clamp(-1, 1)
            made.append(StorageWeakRef(x.untyped_storage()))
            if self.in_backward:
                x.register_hook(self.fail)
            elif sum(not each.expired() for each in made) > 3:
                self.fail()
        return x

    def fail(self, _: object = None) -> None:
        raise torch.OutOfMemoryError("too much")


@pytest.mark.parametrize(
    ("in_backward", "mode", "note"), [(False, "real", "temporary file"), (True, "forward", "backward did not run")]
)
def test_auto_spills_where_the_step_does_not_fit_and_drops_where_that_does_not_either(
    in_backward: bool, mode: str, note: str
) -> None:
    model, x = Tight(in_backward=in_backward), torch.randn(4, WIDTH)
    profile = autockpt.profile(model, x)
    assert profile.mode == mode
    assert any(note in each for each in profile.notes)
    with pytest.raises(torch.OutOfMemoryError):
        autockpt.profile(model, x, mode="real")


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[IO[bytes]]:
    """The temporary files that are opened."""
    opened: list[IO[bytes]] = []
    make = tempfile.TemporaryFile

    def making(**options: Any) -> IO[bytes]:
        opened.append(make(**options))
        return opened[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", making)
    return opened


def test_the_file_is_closed_when_the_step_is_over(files: list[IO[bytes]]) -> None:
    autockpt.profile(Odd(torch.tanh), torch.randn(4, WIDTH), mode="spill")
    assert [file.closed for file in files] == [True]


def test_the_file_is_closed_when_the_step_fails(files: list[IO[bytes]]) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        autockpt.profile(Tight(in_backward=True), torch.randn(4, WIDTH), mode="spill")
    assert [file.closed for file in files] == [True]


FULL = pathlib.Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named_and_auto_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FULL.open("r+b", buffering=0))
    model, x = Tight(in_backward=False), torch.randn(4, WIDTH)
    with pytest.raises(ProfilingError, match=r"took 0 bytes and not \d+ more .*TMPDIR.*mode='forward'"):
        autockpt.profile(model, x, mode="spill")
    assert autockpt.profile(model, x).mode == "forward"


class Mixed(nn.Module):
    """Runs under autocast of its own, or else under that of the caller; uses one weight twice."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside, self.layers = inside, nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.inside else contextlib.nullcontext():
            for layer in (*self.layers, *self.layers):
                x = layer(x).tanh()
            with torch.autocast("cpu", enabled=False):  # its backward would be in half precision inside a region
                out: Tensor = self.layers[0](x.float())
            return out


@pytest.mark.parametrize("mode", ["real", "spill", "forward", "fake"])
def test_in_the_middle_of_the_callers_autocast_a_step_casts_as_under_its_own(mode: Any) -> None:
    x = torch.randn(64, 8)
    own = autockpt.profile(Mixed(inside=True), x, mode=mode)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Mixed(inside=False)(x)
        model = Mixed(inside=False)
        model(x)  # the caller's own forward has cast its weights
        callers = autockpt.profile(model, x, mode=mode)
    assert callers.tensors.bytes == own.tensors.bytes
    assert callers.tensors.birth == own.tensors.birth
    assert callers.saves.release == own.saves.release
    assert not any("differently" in note for note in callers.notes)
    peaks = [simulate(find_candidates(each).problem, ()).peak_bytes for each in (own, callers)]
    assert peaks[0] == peaks[1]


def test_a_step_may_be_recorded_from_positional_arguments_and_keywords() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            out: Tensor = self.layer(x * scale).tanh()
            return out

    model, x, scale = Both(), torch.randn(4, WIDTH), torch.randn(WIDTH)
    step = step_of(model, (x,), {"scale": scale}, None)
    expected = autockpt.profile(model, {"x": x, "scale": scale}, mode="spill")
    assert recorded(record_step(step, mode="spill")) == recorded(expected)
