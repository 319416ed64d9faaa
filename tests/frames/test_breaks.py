"""What outside attacks broke, one test a break."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import autockpt
from autockpt import Plan, ReplayError, Segment
from tests.doors import TURNS, frames_thread, install, torch_private
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, batch, cnn, images, mlp, summed
from tests.toys.chains import Nested
from tests.toys.told import Told, around, with_linear
from tests.twin import counting_replays


def between(middle: nn.Module) -> nn.Sequential:
    """A model in which `middle` is ``1``."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, 1))


def test_hooks_that_are_on_around_forward_only() -> None:
    """Break 04: the replay ran without them."""

    def run(model: nn.Module) -> Tensor:
        inner = model.get_submodule("0")
        handles = [
            inner.get_submodule(name).register_forward_hook(lambda module, args, out: out * 1.5)
            for name in ("3", "4", "6")
        ]
        handles.append(
            inner.get_submodule("7").register_forward_pre_hook(
                lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True
            )
        )
        loss = summed(model)
        for handle in handles:
            handle.remove()
        return loss

    assert_same(nn.Sequential(mlp(), nn.Linear(WIDTH, 1)), ["0"], run)


def test_hooks_around_every_module_that_are_on_around_forward_only() -> None:
    """Break 04 again."""

    def run(model: nn.Module) -> Tensor:
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, out: out * 1.01 if isinstance(module, nn.Linear) else None
        )
        loss = summed(model)
        handle.remove()
        return loss

    assert_same(nn.Sequential(mlp(), nn.Linear(WIDTH, 1)), ["0"], run)


def test_hooks_that_come_after_forward_do_not_run_in_the_replay() -> None:
    def run(model: nn.Module) -> Tensor:
        loss = summed(model)
        handle = model.get_submodule("0.0").register_forward_hook(lambda module, args, out: out * 1.5)
        loss.register_hook(lambda gradient: None)
        loss.backward(retain_graph=True)
        handle.remove()
        return loss

    assert_same(nn.Sequential(mlp(), nn.Linear(WIDTH, 1)), ["0"], run)


def kept(own: Told, x: Tensor) -> Any:
    """Keeps a result in an attribute."""
    own.kept = own.linear(x).tanh()
    return own.kept.sin()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_flags_that_choose_kernels_are_those_of_forward() -> None:
    """Break 07: gradients differed by 1e-7."""
    seen: list[tuple[bool, bool]] = []

    def noting(own: Told, x: Tensor) -> Tensor:
        seen.append(
            (autockpt.is_recomputing(), torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled())
        )
        return x.sin().cos()

    model = between(Told(noting))
    install(model, Plan.of(["1"]))
    with torch.backends.mkldnn.flags(enabled=False):
        loss = summed(model)
    loss.backward()
    assert seen == [(False, False), (True, False)] and torch._C._get_mkldnn_enabled()


def sets(own: Told, x: Tensor) -> Tensor:
    """Sets flags for a while, and puts them back after its last save."""
    torch.set_default_dtype(torch.float64)
    torch._C._set_mkldnn_enabled(False)
    x = torch.tanh(own.linear(x)).sin()
    torch._C._set_mkldnn_enabled(True)
    torch.set_default_dtype(torch.float32)
    return x


def test_flags_that_forward_sets_for_a_while_are_put_back_where_its_replay_ends_early() -> None:
    assert_same(between(with_linear(sets)), ["1"], summed)
    assert torch.get_default_dtype() == torch.float32 and torch._C._get_mkldnn_enabled()


def test_what_a_hook_keeps_is_the_first_forwards_where_it_asks() -> None:
    """Break 09: the replay called the hook again, so `.grad` stood on a tensor that was no longer to be found."""
    kept: dict[str, Tensor] = {}

    def keep(module: nn.Module, args: Any, out: Tensor) -> None:
        if not autockpt.is_recomputing():
            kept["out"] = out

    model = nn.Sequential(mlp(), nn.Linear(WIDTH, 1))
    model.get_submodule("0.3").register_forward_hook(keep)
    install(model, Plan.of(["0"]))
    loss = summed(model)
    kept["out"].retain_grad()
    loss.backward()
    assert kept["out"].grad is not None


def test_what_forward_keeps_in_an_attribute_is_the_first_forwards() -> None:
    """Break 14: that of the replay took its place, with a graph that no backward frees."""

    keeps = with_linear(kept)
    model = between(keeps)
    assert_same(model, ["1"], summed)
    install(model, Plan.of(["1"]))
    for _ in range(2):
        loss = summed(model)
        first = keeps.kept
        loss.backward()
        assert keeps.kept is first


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns in the midst of everything."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def in_threads(work: Callable[[], object], count: int) -> list[BaseException]:
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(120)
    return errors


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("training", [True, False])
def test_one_model_in_several_threads(training: bool) -> None:
    """Breaks 18 and 26b: six hundred steps; batches were not counted, and buffers were lost for good."""
    model = cnn().train(training)
    install(model, Plan.of([["0", "1"], "2"]))
    entries, n_steps = list(model.state_dict()), 300 if training else 600

    def work() -> None:
        for _ in range(n_steps // 4):
            torch.autograd.grad(images(model), list(model.parameters()))

    assert in_threads(work, 4) == []
    assert list(model.state_dict()) == entries
    counts = [int(buffer) for name, buffer in model.named_buffers() if "tracked" in name]
    assert counts == [n_steps * training] * 3


@pytest.mark.usefixtures("hasty")
def test_a_thread_that_evaluates_beside_a_replay_finds_the_models_own_statistics() -> None:
    """Scratch copies stood in their place meanwhile, for every thread."""
    inside, evaluated = threading.Event(), threading.Event()
    found: list[Tensor] = []

    def waits(own: Told, x: Tensor) -> Any:
        x = own.norm(x)
        if autockpt.is_recomputing():
            inside.set()
            assert evaluated.wait(30)
        return x.sin().cos()

    model = between(Told(waits, norm=nn.BatchNorm1d(WIDTH)))
    install(model, Plan.of(["1"]))
    loss = summed(model)
    expected = {name: value.clone() for name, value in model.state_dict().items()}

    def evaluate() -> None:
        assert inside.wait(30)
        found.extend(value.clone() for value in model.state_dict().values())
        evaluated.set()

    other = threading.Thread(target=evaluate)
    other.start()
    loss.backward()
    other.join(30)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected.values()))


def test_an_interrupt_anywhere_leaves_nothing_behind() -> None:
    """Break 19: 32 of 1,463 left hooks on, scratch buffers in, or a thread that thought that it was replaying."""

    class Interrupt(BaseException):
        pass

    def raising(*_: Any) -> None:
        raise Interrupt

    model = cnn()
    model.append(nn.Dropout(0.1))
    keep = ("0.0#0/conv2d#0", "1.0#0")
    segments = (
        Segment(calls=("0#0", "1#0"), keep=keep),
        Segment(calls=("2.0#0", "2.1#0")),
        Segment(calls=("4#0/linear#0",)),
    )
    install(model, Plan(segments=segments))

    def state() -> list[Any]:
        modules = [({**vars(m)}, {**m._buffers}, {**m._parameters}) for m in model.modules()]
        return [
            [(list(a), [id(v) for d in (b, c) for v in d.values()], a["training"]) for a, b, c in modules],
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_cache_enabled(),
            torch._C._autograd._top_saved_tensors_default_hooks(True),
            torch._C._len_torch_function_stack(),
            (frames_thread.scope, frames_thread.replays, frames_thread.units, frames_thread.watch),
            may_draw_elsewhere(),
        ]

    def may_draw_elsewhere() -> list[bool]:
        """Whether a replay in another thread may draw: one waited for ever for a turn that an interrupt had kept."""
        found: list[bool] = []

        def look() -> None:
            found.append(TURNS._lock.acquire(blocking=False))
            if found[0]:
                TURNS._lock.release()

        other = threading.Thread(target=look)
        other.start()
        other.join()
        return found

    images(model).backward()
    before, draw, n_interrupts = state(), random.Random(0), 0
    previous = signal.signal(signal.SIGALRM, raising)
    gc.disable()  # an interrupt in a callback of the collector's, as Hypothesis has one, is raised nowhere
    try:
        for _ in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, 4e-3))
                images(model).backward()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                n_interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert state() == before
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, previous)
    assert n_interrupts


def attends(own: Told, x: Tensor) -> Any:
    """Copies where a batch has several samples, and makes views where it has one."""
    query, key, value = own.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(query, key, value)
    return own.out(mixed.transpose(1, 2).contiguous().flatten(2)).tanh()


@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (4, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("skip", [(), ("1#0/scaled_dot_product_attention#0", "1#0/transpose#0")], ids=["keep", "skip"])
def test_a_dimension_of_one(shape: tuple[int, int], skip: tuple[str, ...]) -> None:
    """Breaks 23 and 23b: copies that a plan keeps are views then, and were refused in the midst of a training."""
    keep = ("1#0/contiguous#0", "1#0/flatten#0")
    plan = Plan(segments=(Segment(calls=("1#0",), keep=keep, skip=skip),))
    attention = Told(attends, qkv=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH))
    assert_same(between(attention), plan, lambda model: model(batch(*shape, WIDTH)).square().sum())


def alive() -> int:
    """Bytes of the tensors that Python knows."""
    tensors: list[Any] = [each for each in gc.get_objects() if type(each) is Tensor]
    return sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in tensors}.values())


def test_a_backward_that_keeps_its_graph_keeps_no_replayed_values() -> None:
    """Break 24: every segment's values stayed, as in a plain step."""
    torch.manual_seed(0)
    before, levels = alive(), list[int]()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8)))
    install(model, Plan.of([str(number) for number in range(8)]))
    model.get_submodule("0.0").register_full_backward_hook(lambda *_: levels.append(alive() - before))
    x = torch.randn(512, 64, requires_grad=True)
    first = model(x).square().mean()
    first.backward(retain_graph=True)
    gradients = [x.grad]
    x.grad = None
    first.backward()
    gradients.append(x.grad)
    assert all(each is not None for each in gradients) and torch.equal(*gradients)  # type: ignore[arg-type]
    assert levels[0] < 1.5 * levels[1] + 512 * 64 * 4 * 8


def test_a_function_that_reads_what_it_saved_twice_where_its_graph_is_kept() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,), (y,) = ctx.saved_tensors, ctx.saved_tensors
            out: Tensor = gradient * (x + y).cos()
            return out

    def run(model: nn.Module) -> Tensor:
        loss = summed(model)
        loss.backward(retain_graph=True)
        return loss

    runs = with_linear(lambda own, x: Twice.apply(Twice.apply(own.linear(x).tanh())))  # type: ignore[no-untyped-call]
    assert_same(between(runs), ["1"], run)


def makes_mask(own: Told, x: Tensor) -> Any:
    """Makes a tensor on the device that is the default."""
    return (own.linear(x).tanh() @ torch.ones(WIDTH, WIDTH).tril()).tanh()


@pytest.mark.parametrize("how", ["all along", "around forward", "around backward"])
def test_the_default_device_is_that_of_forward(how: str) -> None:
    """Break 25: what forward made without naming a device landed elsewhere in the replay."""
    device = "cpu" if how == "around backward" else "meta"
    model = between(with_linear(makes_mask)).to(device)
    install(model, Plan.of(["1"]))
    if how == "all along":
        with torch.device("meta"):
            model(torch.randn(4, WIDTH)).square().mean().backward()
    elif how == "around forward":
        with torch.device("meta"):
            loss = model(torch.randn(4, WIDTH)).square().mean()
        loss.backward()
    else:
        loss = model(torch.randn(4, WIDTH)).square().mean()
        with torch.device("meta"):
            loss.backward()
    assert all(each.grad is not None for each in model.parameters())
    assert torch.empty(1).device.type == "cpu"


def test_an_inference_tensor_as_argument() -> None:
    """Break 27: it was taken for one that had been changed in place."""

    def gives(own: Told, x: Tensor) -> Any:
        with torch.inference_mode():
            by = torch.ones(WIDTH)
        return own.shifts(x, by)

    shifts = with_linear(lambda own, x, by: torch.tanh(torch.tanh(own.linear(x)) + by))
    assert_same(between(Told(gives, shifts=shifts)), ["1.shifts"], summed)


def test_a_lazy_module_is_refused_by_name() -> None:
    """Break 28: a raw ValueError."""
    model = nn.Sequential(nn.Sequential(nn.LazyLinear(4), nn.Tanh()), nn.Linear(4, 1))
    with pytest.raises(autockpt.NotApplicable, match="lazy"):
        autockpt.apply(model, plan=Plan.of(["0"]))


def test_a_saved_tensor_without_gradient_is_the_same_object() -> None:
    """Break 29: quantised weights carry attributes."""
    weight = torch.ones(WIDTH)
    weight.scale = 2.0  # type: ignore[attr-defined]
    seen: list[bool] = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Any) -> Tensor:
            ctx.save_for_backward(weight)
            out: Tensor = x * weight * weight.scale
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            (saved,) = ctx.saved_tensors
            seen.append(saved is weight)
            return gradient * saved * saved.scale, None

    layer = Told(lambda own, x, weight: Scaled.apply(x, weight))  # type: ignore[no-untyped-call]
    assert_same(between(around(layer, lambda layer, x: layer(x, weight))), ["1.inner"], summed)
    assert all(seen) and seen


def test_weights_that_are_registered_elsewhere() -> None:
    """Break 30: silently not recomputed where the input needs no gradient."""

    def flat() -> nn.Module:
        weight = nn.Parameter(batch(WIDTH, WIDTH))
        block = Told(lambda own, x: torch.tanh(x @ own.views[0]).sin().cos(), views=[weight])
        return Told(lambda own, x: own.block(x), flat=weight, block=block)

    model = flat()
    install(model, Plan.of(["block"]))
    with counting_replays() as replays:
        summed(model).backward()
    assert len(replays) == 1
    assert_same(flat(), ["block"], summed)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated", "ignore::torch.jit.TracerWarning")
def test_a_traced_model_runs_plain() -> None:
    """Break 31: the tracer's own check failed."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, WIDTH)) for _ in range(2)))
    x = torch.randn(3, WIDTH)
    install(model, Plan.of(["0", "1"]))
    traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x), model(x))


class Labelled(Tensor):
    """A subclass that torch functions know."""


class Opaque(Tensor):
    """A subclass that torch functions take for any tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("kind", [Labelled, Opaque])
def test_an_argument_of_a_class_of_its_own(kind: type[Tensor], trained: bool) -> None:
    """It was a plain tensor in the replay, without what was on it; and no class had a say in a subclass's backward."""

    def reads(own: Told, x: Tensor, mask: Any) -> Tensor:
        factor = mask.factor if isinstance(mask, kind) else 1.0  # type: ignore[attr-defined]
        return torch.tanh(own.linear(x) * mask * factor).sin()

    def gives(own: Told, x: Tensor) -> Any:
        mask: Any = (own.weight * 3 if trained else torch.ones(WIDTH) * 3).as_subclass(kind)
        mask.factor = 1.5
        return own.reads(x, mask)

    giving = Told(gives, reads=with_linear(reads), weight=nn.Parameter(torch.ones(WIDTH)))
    assert_same(between(giving), ["1.reads"], summed)


def first_time(own: Told, x: Tensor) -> Tensor:
    """Fills a buffer, or registers it, in its first forward, which computes something else."""
    first = getattr(own, "mean", None) is None
    if first:
        own.register_buffer("mean", x.detach().mean(0))
    return torch.tanh(own.linear(x) * (3.0 if first else 1.0) - own.mean).sin()


@pytest.mark.parametrize("buffers", [None, ()], ids=["buffers unknown", "buffers named"])
@pytest.mark.parametrize("registered", [False, True])
def test_a_buffer_that_the_first_forward_fills(registered: bool, buffers: tuple[str, ...] | None) -> None:
    """The replay went the way of a second forward: gradients of the first step were wrong, without a word."""
    made = with_linear(first_time)
    if registered:
        made.register_buffer("mean", None)
    assert_same(between(made), Plan(segments=(Segment(calls=("1#0",), buffers=buffers),)), summed)


def test_a_buffer_that_forward_has_for_a_while_does_not_stay() -> None:
    def temporary(own: Told, x: Tensor) -> Tensor:
        own.register_buffer("mean", x.detach().mean(0))
        x = torch.tanh(own.linear(x) - own.mean).sin()
        del own.mean
        return x

    model = between(with_linear(temporary))
    assert_same(model, ["1"], summed)
    install(model, Plan.of(["1"]))
    summed(model).backward()
    assert list(model.buffers()) == []


@pytest.mark.parametrize("buffers", [None, ("1.full",), ("1.full", "1.part")], ids=str)
def test_two_buffers_that_share_storage(buffers: tuple[str, ...] | None) -> None:
    """Each had a copy of its own, so that the replay read from one what it had not written to the other."""

    def reads_part(own: Told, x: Tensor) -> Tensor:
        with torch.no_grad():
            own.full.mul_(1.5)
        return torch.tanh(own.linear(x) * own.part).sin()

    class Shared(Told):
        """Copies of a model lose what its buffers share: so it makes its own."""

        def __init__(self) -> None:
            full = torch.ones(2 * WIDTH)
            super().__init__(
                lambda own, x: own.inner(x), inner=between(with_linear(reads_part, full=full, part=full[WIDTH:]))
            )

        def __deepcopy__(self, memo: Any) -> Shared:
            return Shared()

    named = buffers and tuple(f"inner.{name}" for name in buffers)
    assert_same(Shared(), Plan(segments=(Segment(calls=("inner.1#0",), buffers=named),)), summed)


@pytest.mark.parametrize("buffers", [None, ("running_mean", "running_var", "num_batches_tracked")], ids=str)
def test_a_normalisation_in_both_modes_within_one_call(buffers: tuple[str, ...] | None) -> None:
    """The replay read statistics that forward had moved meanwhile."""

    def both(own: Told, x: Tensor) -> Any:
        out = own.linear(x)
        for number, training in enumerate((False, True, False, True)):
            own.norm.train(training)
            out = own.norm(out * (1 + number)).tanh()
        return out.sin()

    named = buffers and tuple(f"1.norm.{name}" for name in buffers)
    assert_same(
        between(with_linear(both, norm=nn.BatchNorm1d(WIDTH))),
        Plan(segments=(Segment(calls=("1#0",), buffers=named),)),
        summed,
    )


def test_attention_without_gradients_takes_its_fast_path_inside_a_call_with_leaves() -> None:
    """It does not where a function mode is on, and what it returned differed in its last bits: found by the fuzzing."""

    def frozen(own: Told, x: Tensor) -> Any:
        x = own.linear(x)
        with torch.no_grad():
            seen = own.attention(x, x, x)[0]
        return (x * seen).tanh().sin()

    def model_of_it() -> nn.Module:
        return between(with_linear(frozen, attention=nn.MultiheadAttention(WIDTH, 2, batch_first=True).eval()))

    def run(model: nn.Module) -> Tensor:
        loss: Tensor = model(batch(3, 5, WIDTH)).square().sum()
        return loss

    plan = Plan(segments=(Segment(calls=("1#0",), keep=("1#0/tanh#0",)),))
    assert_same(model_of_it(), plan, run)
    model = model_of_it()
    install(model, plan)
    with mock.patch.object(torch, "_native_multi_head_attention", wraps=torch._native_multi_head_attention) as fast:
        run(model).backward()
    assert fast.call_count == 2  # in forward, and in the replay


def test_modules_that_are_nested_deep() -> None:
    """Three Python frames a module were too many."""
    model = Nested(150, WIDTH)
    names = [name for name, module in model.named_modules() if isinstance(module, Nested)]
    calls = [(f"{name}.linear#0" if name else "linear#0", f"{name}#0/gelu#0") for name in names]
    install(model, Plan(segments=tuple(Segment(calls=each) for each in calls)))
    with counting_replays() as replays:
        in_threads_result = in_threads(lambda: summed(model).backward(), 1)
    assert in_threads_result == [] and len(replays) == 150


def test_modules_that_a_double_reaches_otherwise() -> None:
    """In lists, methods, partial functions and closures: their statistics would be counted twice."""

    class Holder:
        def __init__(self, module: nn.Module) -> None:
            self.module = module

    def run(own: Any, x: Tensor) -> Any:
        return own.norm(x)

    def reaches(own: Told, x: Tensor) -> Any:
        x = own.linear(x)
        for way in own.ways:
            x = (way.module if isinstance(way, Holder) else way)(x).tanh()
        return x.sin()

    def reaching() -> nn.Module:
        norm = nn.BatchNorm1d(WIDTH)
        made = with_linear(reaches, norm=norm)
        made.ways = [norm, types.MethodType(run, made), functools.partial(run, made), Holder(norm)]
        return between(made)

    model = reaching()
    own = model.get_submodule("1").forward
    model.get_submodule("1").forward = lambda x: own(x).cos()
    assert_same(model, ["1"], summed, replays=None)
    assert_same(reaching(), ["1"], summed)


def test_what_a_replay_made_dies_with_it_without_the_collector() -> None:
    """Doubles lead back to themselves, with copies of buffers and what forward puts on a module."""

    modules: list[nn.Module] = []
    model = between(Told(kept, linear=nn.BatchNorm1d(WIDTH)))
    keeps = model.get_submodule("1")
    keeps.get_submodule("linear").register_forward_hook(lambda module, args, out: modules.append(module))
    install(model, Plan.of(["1"]))
    gc.collect()
    gc.disable()
    try:
        summed(model).backward()
        levels = []
        for _ in range(3):
            summed(model).backward()
            model.zero_grad()
            levels.append(alive())
    finally:
        gc.enable()
    assert len({*levels}) == 1
    assert all(module.running_mean is keeps.get_buffer("linear.running_mean") for module in modules)


def test_a_counter_counts_each_forward_once() -> None:
    def counts(own: Told, x: Tensor) -> Tensor:
        own.calls += 1
        return torch.tanh(own.linear(x) * own.calls).sin()

    counting = with_linear(counts, calls=0)
    model = between(counting)
    assert_same(model, ["1"], summed)
    install(model, Plan.of(["1"]))
    for number in range(3):
        summed(model).backward()
        assert counting.calls == number + 1


def test_parametrizations_that_are_cached_around_forward() -> None:
    """Their weights are made by whoever comes first: such calls run plain, or are refused by name."""
    model = between(nn.Sequential(parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()))

    def run(model: nn.Module) -> Tensor:
        with parametrize.cached():
            return summed(model)

    assert_same(model, ["1"], run, replays=False)
    assert_same(model, ["1"], summed)
    install(model, Plan.of(["1"]))
    loss = summed(model)
    with parametrize.cached(), pytest.raises(ReplayError, match="cached"):
        loss.backward()


def test_a_replay_error_is_a_runtime_error_too() -> None:
    assert issubclass(ReplayError, RuntimeError)


class StretchesTanh(TorchDispatchMode):
    """Changes what an operator computes, below autograd."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 1.5 if func is torch.ops.aten.tanh.default else out


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("in_forward", [False, True])
def test_a_dispatch_mode_is_on_in_a_replay_as_it_was_in_forward(in_forward: bool, in_backward: bool) -> None:
    """The replay ran under the modes of backward, and gradients were wrong without a word."""

    mode = StretchesTanh()  # type: ignore[no-untyped-call]

    def gradients(model: nn.Module) -> list[Tensor]:
        with mode if in_forward else contextlib.nullcontext():
            loss = summed(model)
        with mode if in_backward else contextlib.nullcontext():
            found = torch.autograd.grad(loss, list(model.parameters()))
            assert len(torch_private.dispatch_modes()) == in_backward
        return list(found)

    model = between(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    expected = gradients(model)
    install(model, Plan.of(["1"]))
    with counting_replays() as replays:
        found = gradients(model)
    assert len(replays) == 1
    assert all(map(torch.equal, expected, found))


def test_a_counter_of_torchs_own_does_not_count_a_replay_as_forward() -> None:
    model = between(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)))
    install(model, Plan.of(["1"]))
    with FlopCounterMode(display=False) as counter:
        loss = summed(model)
    forward = counter.get_total_flops()
    loss.backward()
    assert counter.get_total_flops() == forward > 0
