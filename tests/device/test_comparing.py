"""Comparisons on a device: few kernels, no memory to speak of, no wait; and what differs is found a step later."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import autockpt
from tests.doors import Places, on_device
from tests.fake_cuda.device import Options, set_options, take_peak, watching
from tests.toys.chains import feed_forward
from tests.toys.told import Told

Checks = Literal["sampled", "always", "never"]

CALLS = 3

NAMED = r"^call1#0 saved .* in a step before this one.*keep='call1'"


class Late:
    """A model of which one call reads a number that moves between forward and backward, from some step on."""

    def __init__(self, check: Checks) -> None:
        torch.manual_seed(0)
        self.moved, self.left_out = 0.0, CALLS
        self.noise: Iterator[int] = itertools.repeat(0)

        def act(own: Told, input: Tensor) -> Tensor:
            made: Tensor = own.inner(input + self.moved + next(self.noise)).tanh()
            return made

        def every(own: Told, input: Tensor) -> Tensor:
            for number in range(CALLS):
                if number != self.left_out:
                    input = getattr(own, f"call{number}")(input)
            return input

        calls = {f"call{number}": Told(act, inner=feed_forward(64)) for number in range(CALLS)}
        self.model = Told(every, **calls).cuda()
        self.input = torch.randn(32, 64).cuda()
        autockpt.apply(self.model, plan=autockpt.Plan.of(list(calls)), check=check)

    def step(self, *, moves: float = 0.0) -> None:
        """Run one step, of which forward and replays differ by `moves`."""
        made = self.model(self.input).square().mean()
        self.moved += moves
        made.backward()
        self.model.zero_grad()


@contextlib.contextmanager
def waits() -> Iterator[Counter[str]]:
    """Count what waits for the device."""
    found: Counter[str] = Counter()

    def counted(name: str, own: Any) -> Any:
        def method(tensor: Tensor, *given: Any, **named: Any) -> Any:
            found.update([name] * tensor.is_cuda)
            return own(tensor, *given, **named)

        return method

    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "item", "cpu", "__bool__"):
            patch.setattr(Tensor, name, counted(name, getattr(Tensor, name)))
        yield found


def test_no_step_waits_for_its_comparison() -> None:
    run = Late("sampled")
    for _ in range(2):
        run.step()
    with waits() as found:
        for _ in range(20):
            run.step()
    assert not found
    always = Late("always")
    with waits() as found:
        always.step()
    assert found


@pytest.mark.parametrize("pinned_limit_bytes", [None, 0])
def test_a_difference_of_one_step_is_an_error_in_the_next_where_its_call_was_compared(
    pinned_limit_bytes: int | None,
) -> None:
    """The second of three calls is compared in one of sixteen steps: in the 17th, the 33rd."""
    set_options(Options(pinned_limit_bytes=pinned_limit_bytes))
    run = Late("sampled")
    for number in range(1, 50):
        if number == 34:
            with pytest.raises(autockpt.ReplayError, match=NAMED):
                run.step()
        else:
            run.step(moves=float(number in (20, 24, 33)))


@pytest.mark.parametrize("first", [0, 5])
def test_what_differs_from_some_step_on_is_found(first: int) -> None:
    run = Late("sampled")
    for _ in range(2 + first):
        run.step()
    with pytest.raises(autockpt.ReplayError, match="in a step before this one"):
        for _ in range(18):
            run.step(moves=1.0)


def test_a_function_that_recomputes_by_itself_is_told_as_late() -> None:
    moved, weight = ctypes.c_double(), torch.randn(64, 64).cuda().requires_grad_()

    @autockpt.recompute
    def act(input: Tensor) -> Tensor:
        return ((input + moved.value) @ weight).tanh().exp()

    def steps(number: int, *, moves: float) -> None:
        for _ in range(number):
            made = act(torch.ones(4, 64).cuda()).sum()
            moved.value += moves  # which nobody looks into
            made.backward()

    steps(5, moves=0.0)
    with pytest.raises(autockpt.ReplayError, match=r"in a step before this one.*take autockpt\.recompute off it"):
        steps(18, moves=1.0)


def test_what_the_host_knows_to_differ_is_told_in_its_own_step() -> None:
    """A number on the host is compared at once. It was left to the device's verdict, which knows nothing of it."""
    moved = ctypes.c_double()
    scaled = Told(lambda own, input: (input * torch.tensor(1.0 + moved.value)).tanh())
    model = nn.Sequential(nn.Linear(64, 64), scaled, nn.Linear(64, 1)).cuda()
    autockpt.apply(model, plan=autockpt.Plan.of(["1"]))

    def steps(number: int, *, moves: float) -> None:
        for _ in range(number):
            made = model(torch.ones(4, 64).cuda()).sum()
            moved.value += moves  # which nobody looks into
            made.backward()

    steps(3, moves=0.0)
    with pytest.raises(autockpt.ReplayError, match=r"^1#0 saved other values in its replay than in its forward: it"):
        steps(18, moves=1.0)


def test_a_call_that_does_not_run_again_is_named_two_steps_later() -> None:
    run = Late("sampled")
    for number in range(1, 18):
        run.step(moves=float(number == 17))
    run.left_out = 1
    run.step()
    with pytest.raises(autockpt.ReplayError, match=NAMED):
        run.step()


def test_a_kernel_that_ceases_to_repeat_itself_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    run = Late("sampled")
    for _ in range(4):
        run.step()
    run.noise = itertools.count(1)
    for _ in range(40):
        run.step()
    assert ["two replays of" in each for each in caplog.messages] == [True] * CALLS


def test_what_is_always_compared_is_told_in_its_own_step() -> None:
    run = Late("always")
    for _ in range(3):
        run.step()
    with pytest.raises(autockpt.ReplayError, match="other values in its replay than in its forward: it reads"):
        run.step(moves=1.0)


@pytest.mark.parametrize("attention", ["flash", "efficient"])
def test_what_attention_leaves_unwritten_is_no_difference_and_no_wait(attention: Literal["flash", "efficient"]) -> None:
    set_options(Options(attention=attention))
    torch.manual_seed(0)
    litter = itertools.count()

    def act(own: Told, input: Tensor) -> Tensor:
        query, key, value = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in own.project(input).chunk(3, -1))
        left = [torch.full((2,), next(litter), device="cuda") for _ in range(8)]
        del left  # what is in these blocks is what nobody writes in those that attention takes
        made: Tensor = functional.scaled_dot_product_attention(query, key, value)
        return input + made.transpose(1, 2).flatten(2)

    blocks = (Told(act, project=nn.Linear(64, 192)) for _ in range(CALLS))
    model, input = nn.Sequential(*blocks).to("cuda", torch.bfloat16), torch.randn(2, 29, 64).to("cuda", torch.bfloat16)
    autockpt.apply(model, plan=autockpt.Plan.of([str(number) for number in range(CALLS)]))
    for number in range(20):
        with waits() as found:
            model(input).square().mean().backward()
        assert not found or number < 2


def test_a_compared_block_launches_few_kernels() -> None:
    """A block of this size took 111 more, casts not counted. Copies are not counted here either."""
    torch.manual_seed(0)
    blocks = (nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2))
    model, input = nn.Sequential(*blocks).cuda(), torch.randn(4, 32, 128).cuda()
    autockpt.apply(model, plan=autockpt.Plan.of(["0", "1"]))
    launched = []
    for _ in range(18):  # the second block is compared in the last but one
        with watching() as ran:
            model(input).square().mean().backward()
        launched.append(len(ran))
    compared, other, none = launched[-3:]
    assert none < compared == other <= none + 90


class Kernels(TorchDispatchMode):
    """Lists the operators that launch a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view and func not in NO_KERNELS:
            self.seen.append(str(func))
        return made


NO_KERNELS = [torch.ops.aten.empty.memory_format, torch.ops.aten.set_.source_Storage_storage_offset]

SHAPES = (((1 << 24,), torch.float32), ((1 << 20,), torch.bfloat16), ((701, 999), torch.bfloat16), ((64,), torch.bool))


def test_a_tensor_takes_two_kernels_at_most_and_many_take_three_more() -> None:
    places, tensors = Places(), [torch.ones(shape, dtype=dtype).cuda() for shape, dtype in SHAPES]
    expected = [on_device(each).item() for each in tensors]
    found, launched = [], []
    with Kernels() as kernels:
        for each in tensors * 2:
            found.append(places.take(each))
            launched.append(len(kernels.seen))
            kernels.seen.clear()
        places.settle()
    assert launched == [1, 1, 2, 1] * 2
    assert len(kernels.seen) == 3
    assert [each.item() for each in found] == expected * 2


def test_numbers_are_made_in_the_stream_that_wrote_the_rows() -> None:
    tensor, places, side = torch.ones(1 << 14).cuda(), Places(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        places.take(tensor)
    places.take(tensor)
    with watching() as ran:
        places.settle()
    assert [each.stream for each in ran if each.operator == "aten::mul"] == [side.stream_id, 0]
    assert torch.cuda.current_stream().stream_id == 0


def test_a_comparison_takes_next_to_no_memory() -> None:
    tensor, places = torch.ones(1 << 23).cuda(), Places()
    places.take(tensor[:3])  # what each device has once
    places.settle()
    before = torch.cuda.memory_allocated()
    take_peak()
    for _ in range(60):
        places.take(tensor)
    places.settle()
    assert take_peak() - before <= 0.01 * tensor.nbytes
    assert torch.cuda.memory_allocated() - before <= 1024
