"""Each private torch name that frames use still does what they need it to do."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict, deque
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer, optimizer
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import autockpt
from tests.doors import checksum_of_saved, torch_private


def same(tensor: Tensor) -> Tensor:
    return tensor


def test_hooks_are_pushed_and_popped_innermost() -> None:
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    x = torch.ones(2, requires_grad=True)
    with saved_tensors_hooks(same, same):
        outer = torch_private.outer_hooks()
        assert outer is not None and outer[0] is same and outer[1] is same
        torch_private.push_hooks(pack, same)
        inner = torch_private.outer_hooks()
        assert inner is not None and inner[0] is pack
        x.exp()
        torch_private.pop_hooks()
        x.exp()
    assert len(packed) == 1
    assert torch_private.outer_hooks() is None


def test_a_version_is_told_without_the_tensors_memory() -> None:
    tensor = torch.ones(2, requires_grad=True).exp()
    counter = torch_private.version_counter(tensor)
    assert counter.untyped_storage().nbytes() == 0
    tensor.data.add_(1)
    assert torch_private.version(counter) == torch_private.version(tensor) == 0
    tensor.detach().add_(1)
    assert torch_private.version(counter) == torch_private.version(tensor) == 1


def test_a_cast_of_a_leaf_is_known_by_its_node() -> None:
    leaf = torch.ones(2, requires_grad=True)
    cast = leaf.to(torch.bfloat16)
    assert torch_private.cast_of(cast) is leaf
    assert all(torch_private.cast_of(each) is None for each in (leaf, leaf * 2, cast * 2, cast.detach(), cast.float()))


def test_a_storage_is_held_alone_once_no_tensor_and_no_array_has_it() -> None:
    tensor = torch.ones(2)
    storage, array = tensor.untyped_storage(), tensor.numpy()
    del tensor
    assert not torch_private.held_alone(storage) and array.sum() == 2
    del array
    assert torch_private.held_alone(storage)


def test_gradients_are_switched_for_this_thread() -> None:
    torch_private.set_grad_enabled(False)
    try:
        assert not torch.is_grad_enabled()
    finally:
        torch_private.set_grad_enabled(True)
    assert torch.is_grad_enabled()


def test_a_region_of_torch_checkpoint_is_seen_in_forward_and_in_its_recomputation() -> None:
    seen: list[bool] = []

    def region(x: Tensor) -> Tensor:
        seen.append(torch_private.foreign_checkpoint_active())
        assert not torch_private.runs_plain()
        with saved_tensors_hooks(same, same):
            seen.append(torch_private.foreign_checkpoint_active())
            assert torch_private.runs_plain()
        return x.exp().sin()

    checkpoint(region, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()
    assert seen == [True, False, True, False]
    assert not torch_private.foreign_checkpoint_active()


def test_a_function_that_recomputes_by_itself_is_known_inside_it() -> None:
    seen: list[tuple[str, bool, bool]] = []

    def region(x: Tensor) -> Tensor:
        plain = torch_private.runs_plain(), torch_private.runs_plain(in_function=True)
        seen.append((torch_private.recomputed_function().rpartition(".")[2], *plain))
        assert torch_private.foreign_checkpoint_active() == bool(seen[-1][0])
        return x.exp().sin()

    autockpt.recompute(region)(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen == [("region", False, True)]  # its replay has a list of its own
    assert not torch_private.recomputed_function()


def test_what_is_never_compiled_is_not_and_neither_is_what_it_calls() -> None:
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        compiled.append(graph)
        return graph.forward

    def inner(x: Tensor) -> Tensor:
        return x.exp()

    @torch_private.never_compiled
    def outer(x: Tensor) -> Tensor:
        return inner(x).sin()

    torch.compile(outer, backend=backend)(torch.ones(2))
    assert not compiled
    torch.compile(inner, backend=backend)(torch.ones(2))
    assert len(compiled) == 1


def test_transforms_and_disabled_hooks_are_seen() -> None:
    seen: list[bool] = []

    def function(x: Tensor) -> Tensor:
        seen.append(torch_private.transforms_active())
        assert seen[-1] is not torch_private.runs_plain()
        return x.sum()

    x = torch.ones(3)
    torch.func.grad(function)(x)
    torch.func.vmap(function)(torch.ones(2, 3))
    with torch.autograd.forward_ad.dual_level():
        function(x)
    with disable_saved_tensors_hooks("not here"):
        function(x)
    assert seen == [True] * 4
    function(x)
    assert not seen[-1]


def test_autocast_is_seen_for_any_device_type() -> None:
    assert not torch_private.any_autocast_enabled()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch_private.any_autocast_enabled()


def test_versions_count_changes_in_place_through_views_and_detached_copies() -> None:
    x = torch.ones(3)
    before = torch_private.version(x)
    x.detach()[1:].add_(1)
    assert torch_private.version(x) == before + 1 == torch_private.version(x.detach())
    with torch.inference_mode():
        uncounted = torch.ones(1)
    assert torch_private.version(uncounted) == -1
    assert torch_private.versions([x, x[1:]]) == [before + 1, before + 1]
    assert torch_private.versions([x, uncounted]) == [before + 1, -1]


class Wrapper(Tensor):
    """Looks like floats, and has codes and scales."""

    @staticmethod
    def __new__(cls, codes: Tensor, scales: Tensor) -> Wrapper:
        new: Wrapper = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scales.dtype)
        vars(new).update(codes=codes, scales=scales)
        return new

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scales"], None

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> object:
        raise NotImplementedError


def test_parts_of_a_wrapper_are_what_it_wraps_and_other_tensors_are_whole() -> None:
    plain, codes, scales = nn.Parameter(torch.ones(2)), torch.ones(2, dtype=torch.int8), torch.ones(1)
    found = torch_private.parts([plain, Wrapper(codes, scales), Wrapper(codes, Wrapper(codes, scales))])
    assert [id(each) for each in found] == [*map(id, [plain, codes, scales, codes, codes, scales])]


def test_tensors_without_memory_have_no_address() -> None:
    tensor = torch.empty(4, device="meta")
    torch_private.refuse_pointers(tensor)
    torch_private.refuse_pointers(torch.ones(2))
    tensor.mul_(2).view(2, 2).lerp_(torch.empty(2, 2, device="meta"), 0.5)
    for asked in (tensor, tensor.view(2, 2)):
        with pytest.raises(RuntimeError, match="Cannot access data pointer"):
            asked.data_ptr()


def test_storage_keys_are_shared_by_views_and_by_nothing_else() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    key = torch_private.storage_key(weight)
    assert key == torch_private.storage_key(weight.t()[1:]) == torch_private.storage_key(weight.detach())
    assert key != torch_private.storage_key(weight.clone())
    assert torch_private.storage_key(torch.eye(2).to_sparse()) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile loads torch.jit
def test_compiled_modules_are_known() -> None:
    linear = nn.Linear(2, 2)
    assert not torch_private.is_compiled(linear)
    assert torch_private.is_compiled(torch.compile(linear))  # type: ignore[arg-type]
    linear.compile()
    assert torch_private.is_compiled(linear)


def test_function_modes_can_be_kept_from_seeing_what_the_recorder_does() -> None:
    seen: list[object] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Mode():
        with torch_private.no_torch_functions():
            torch.empty(2)
            x.untyped_storage()
        assert not seen
        x.exp()
    assert seen == [torch.Tensor.exp]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_geometry_of_layouts_with_and_without_strides() -> None:
    assert torch_private.geometry(torch.ones(2, 3).t()) == ((3, 2), (1, 3))
    assert torch_private.geometry(torch.eye(2).to_sparse_csr()) == ((2, 2), ())


def test_containers_that_torch_knows() -> None:
    handlers = torch_private.container_handlers(deque)
    assert handlers is not None
    flatten, unflatten = handlers
    children, context = flatten(deque([1, 2], maxlen=3))
    rebuilt = unflatten([3, 4], context)
    assert list(children) == [1, 2] and rebuilt == deque([3, 4]) and rebuilt.maxlen == 3
    assert torch_private.container_handlers(OrderedDict) is not None
    assert torch_private.container_handlers(nn.Linear) is None


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_flags_are_what_the_public_contexts_set() -> None:
    before = torch_private.flags()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        attention = torch_private.flags()
    with torch.backends.mkldnn.flags(enabled=False):
        kernels = torch_private.flags()
    assert before == torch_private.flags()
    for inside in (attention, kernels):
        assert inside != before
        torch_private.set_flags(inside)
        assert torch_private.flags() == inside
        torch_private.set_flags(before)
        assert torch_private.flags() == before
    torch.set_default_dtype(torch.float64)
    torch_private.set_flags(before)
    assert torch.get_default_dtype() == torch.float32


def test_function_modes_are_exchanged_as_a_whole() -> None:
    outer, inner = torch.device("cpu"), torch.device("meta")
    with outer:
        first = torch_private.function_modes()
        with inner:
            both = torch_private.function_modes()
            assert both[:-1] == first
            torch_private.set_function_modes(first)
            assert torch.empty(1).device.type == "cpu"
            torch_private.set_function_modes(both)
            assert torch.empty(1).device.type == "meta"
    assert torch_private.function_modes() == []


def test_dispatch_modes_are_exchanged_as_a_whole() -> None:
    class Mine(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    torchs, mine = FlopCounterMode(display=False), Mine()  # type: ignore[no-untyped-call]
    with torchs, mine:
        both = torch_private.dispatch_modes()
        assert torch_private.of_the_user(both) == [mine]
        torch_private.set_dispatch_modes(both[:-1])
        assert torch_private.dispatch_modes() == both[:-1]
        torch_private.set_dispatch_modes(both)
        assert torch_private.dispatch_modes() == both
    assert torch_private.dispatch_modes() == []


def test_a_backward_that_keeps_its_graph_has_a_number() -> None:
    seen: list[int] = []
    x = torch.ones(2, requires_grad=True)
    y = x.sin()
    y.register_hook(lambda gradient: seen.append(torch_private.keeping_backward()))
    for keep in (True, True, False):
        y.sum().backward(retain_graph=keep)
    assert 0 <= seen[0] < seen[1] and seen[2] == -1 == torch_private.keeping_backward()


def test_hooks_around_every_module() -> None:
    assert torch_private.global_hooks() is None
    handle = nn.modules.module.register_module_forward_hook(print)
    found = torch_private.global_hooks()
    handle.remove()
    assert found is not None and list(found["_forward_hooks"].values()) == [print]
    assert torch_private.global_hooks() is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace. is deprecated")
def test_what_is_traced_and_what_is_cached_is_known() -> None:
    seen: list[bool] = []

    def traced(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch_private.is_tracing())
        assert seen[-1] is not torch_private.runs_plain()
        return x

    torch.jit.trace(traced, torch.ones(1))
    with torch.nn.utils.parametrize.cached():
        assert torch_private.parametrizations_are_cached() and not torch_private.runs_plain()
    assert seen[0] and not torch_private.is_tracing() and not torch_private.parametrizations_are_cached()


def test_the_generator_behind_a_device() -> None:
    assert torch_private.default_generator(torch.device("cpu")) is torch.default_generator
    assert torch_private.default_generator(torch.device("meta")) is None
    if torch.cuda.is_available():
        torch.cuda.init()
        assert torch_private.default_generator(torch.device("cuda")) is torch.cuda.default_generators[0]


def test_no_graph_is_captured() -> None:
    assert not torch_private.captures_graph()
    assert torch_private.runs_plain()


@pytest.mark.skipif(torch.cuda.is_initialized(), reason="CUDA is in use")
def test_without_cuda_there_is_no_stream() -> None:
    assert torch_private.current_stream() is None


@pytest.mark.gpu
def test_the_current_stream_is_told_by_its_numbers() -> None:
    torch.zeros(1, device="cuda")
    outside = torch_private.current_stream()
    assert outside is not None and torch_private.stream_of(outside) == torch.cuda.current_stream()
    with torch.cuda.stream(torch.cuda.Stream()):
        inside = torch_private.current_stream()
        assert inside is not None and inside != outside
        assert torch_private.stream_of(inside) == torch.cuda.current_stream()


def test_a_tensor_without_storage_looks_as_it_is_told() -> None:
    class Empty(torch.Tensor):
        __torch_function__ = torch_private.plain_torch_function  # type: ignore[assignment]

        @classmethod
        def __torch_dispatch__(cls, func: Any, *_: Any) -> None:
            raise AssertionError(func)

    look = (torch.Size([3, 2]), (1, 3), 4, torch.float64)
    for wants in (False, True):
        empty = torch_private.tensor_without_storage(Empty, look, torch.device("cpu"), requires_grad=wants)
        assert type(empty) is Empty
        assert (empty.shape, empty.stride(), empty.storage_offset(), empty.dtype) == look
        assert (empty.device, empty.requires_grad, empty.is_leaf) == (torch.device("cpu"), wants, True)


def test_a_function_mode_is_switched_off_where_it_is_the_innermost() -> None:
    seen: list[object] = []

    class Sees(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    ones = torch.ones(2)
    with Sees() as mode:
        assert torch_private.suspend_function_mode(mode)
        ones.exp()
        assert not torch_private.suspend_function_mode(mode)
        torch_private.push_function_mode(mode)
        assert not seen
        ones.sin()
        with Sees():
            assert not torch_private.suspend_function_mode(mode)
    assert seen == [Tensor.sin]


OPTIMIZERS = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if isinstance(kind, type) and issubclass(kind, Optimizer) and name not in ("LBFGS", "Optimizer", "SparseAdam")
]


class _Operators(TorchDispatchMode):
    """Notes the operators that run, and whether a value is read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()
        self.items = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        self.items += torch_private.is_item(func)
        return func(*args, **(kwargs or {}))


def test_reading_a_value_is_seen() -> None:
    with _Operators() as seen:
        assert torch.ones(()).item() == 1.0
    assert seen.items == 1


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: str(kind.__name__))
@pytest.mark.parametrize("supported", [False, True])
def test_whether_optimizers_update_all_parameters_at_once(
    kind: Any, supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = ["cpu"] if supported else []  # as if foreach were the default here, as it is on a GPU
    monkeypatch.setattr(optimizer, "_get_foreach_kernels_supported_devices", lambda: devices)
    weights = [nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.ones(2, 2)
    live = kind(weights)
    with _Operators() as seen:
        live.step()
    at_once = any("_foreach_" in name for name in seen.names)
    assert torch_private.foreach_by_default(kind, weights, "cpu") == at_once
    assert not torch_private.foreach_by_default(kind, weights, "meta")


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: str(kind.__name__))
def test_a_bare_step_of_a_blank_optimizer_does_what_the_real_one_does_without_hooks(kind: Any) -> None:
    fired: list[object] = []
    weights = [nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.full((2, 2), 0.5)
    live, control = kind(weights[:1]), kind(weights[1:])
    control.step()
    live.step = lambda: fired.append(live)
    live.register_step_pre_hook(lambda *_: fired.append(1))
    handles = [optimizer.register_optimizer_step_post_hook(lambda *_: fired.append(2))]
    blank = torch_private.blank_optimizer(live)
    with torch.no_grad():
        torch_private.bare_step(type(live))(blank)
    handles[0].remove()
    assert type(blank) is type(live) and not fired
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], torch.ones(2, 2))


def test_the_memory_profiler_writes_nothing_and_sets_everything_back() -> None:
    """In a process of its own: torch writes to the file descriptor, and warns of old memory only once in a while."""
    program = """
import os, torch
from tests.doors import checksum_of_saved, torch_private
level = torch_private.profiler._log_level()
before, old = level.value, [torch.ones(1000)]
running = torch_private.start_memory_profiler()
old.clear()
new = torch.ones(1000)
assert [change for _, change, *_ in torch_private.stop_memory_profiler(running, 'cpu')] == [4000]
assert level.value == before and "KINETO_LOG_LEVEL" not in os.environ
print(before)
"""
    environment = {name: value for name, value in os.environ.items() if "LOG_LEVEL" not in name}
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("1\n", "")  # 1: the level was found, and is that of warnings


def test_hooks_yield_where_they_are_switched_off_and_come_back() -> None:
    seen: list[str] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append("pack")
        return tensor

    enable = torch._C._autograd._saved_tensors_hooks_enable
    weight = torch.ones(2, requires_grad=True)
    with torch_private.yielding_hooks((pack, lambda held: held), lambda: seen.append("yielded")):
        weight.sin()
        with disable_saved_tensors_hooks("none here"):
            weight.sin()
            with disable_saved_tensors_hooks("none here"):
                weight.sin()
        weight.sin()
    weight.sin()
    assert seen == ["pack", "yielded", "pack"]
    assert torch._C._autograd._saved_tensors_hooks_enable is enable


def test_blocks_of_two_threads_with_yielding_hooks_may_end_in_any_order() -> None:
    disable = torch._C._autograd._saved_tensors_hooks_disable
    yielded: list[str] = []
    inside, over = threading.Event(), threading.Event()

    def block(name: str) -> AbstractContextManager[None]:
        return torch_private.yielding_hooks((lambda tensor: tensor, lambda held: held), lambda: yielded.append(name))

    def other() -> None:
        with block("other"):
            inside.set()
            over.wait(10)
            torch.func.grad(torch.sin)(torch.ones([]))

    thread = threading.Thread(target=other)
    with block("this"):
        thread.start()
        inside.wait(10)
        torch.func.grad(torch.sin)(torch.ones([]))
    over.set()
    thread.join()
    assert yielded == ["this", "other"]
    assert torch._C._autograd._saved_tensors_hooks_disable is disable


def test_what_stood_before_torchs_switch_keeps_nothing_alive() -> None:
    """The compiler's tables, made inside the first recorded forward, kept its model for as long as the process ran."""

    class Owner:
        def pack(self, tensor: Tensor) -> Tensor:
            return tensor

    owner = Owner()
    alive = weakref.ref(owner)
    with torch_private.yielding_hooks((owner.pack, same), lambda: None):
        kept = torch._C._autograd._saved_tensors_hooks_disable, torch._C._autograd._saved_tensors_hooks_enable
    del owner
    gc.collect()
    assert alive() is None
    kept[0]("off", False)  # as torch's own
    kept[1]()
    assert torch_private.outer_hooks() is None


def test_a_node_that_reads_what_was_written_late_is_told() -> None:
    told: list[bool] = []

    def unpack(tensor: Tensor) -> Tensor:
        told.append(torch_private.reads_late_writes())
        return tensor

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        noisy = torch.nn.functional.rrelu(x, training=True)
        plain = x.exp()
    noisy.sum().backward()
    assert told and all(told)
    told.clear()
    plain.sum().backward()
    assert told == [False] and not torch_private.reads_late_writes()


mkldnn: Any = torch.backends.mkldnn


def test_flags_that_the_older_interface_has_set_can_be_read_by_it_after_they_were_put_back() -> None:
    """The newer one alone would leave the two in contradiction, and torch raises where the older one is read."""
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        forward = torch_private.flags()
        torch.set_float32_matmul_precision("highest")
        now = torch_private.flags()
        torch_private.set_flags(forward)
        assert torch.get_float32_matmul_precision() == "high"
        assert mkldnn.matmul.fp32_precision == "tf32"
        torch_private.set_flags(now)
        assert torch.get_float32_matmul_precision() == "highest"
        torch.backends.cuda.matmul.allow_tf32 = False
        assert torch.backends.cuda.matmul.allow_tf32 is False
    finally:
        torch.set_float32_matmul_precision(before)


def test_flags_that_the_newer_interface_has_set_stay_as_they_are() -> None:
    precision = mkldnn.matmul.fp32_precision
    try:
        forward = torch_private.flags()
        mkldnn.matmul.fp32_precision = "tf32"
        torch_private.set_flags(forward)
        assert mkldnn.matmul.fp32_precision == precision
        assert torch_private.flags() == forward
    finally:
        mkldnn.matmul.fp32_precision = precision


def test_the_cache_of_pinned_memory_can_be_emptied_where_there_is_none() -> None:
    """Where there is one: tests/device."""
    torch_private.empty_pinned_cache()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_wrappers_are_taken_apart_and_made_again() -> None:
    """Sizes of a jagged tensor are tied to its very offsets, or its lengths: another one with these is another size."""
    values, offsets, lengths = torch.randn(9, 4), torch.tensor([0, 3, 9]), torch.tensor([2, 5])
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets)
    narrow = torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
    strided = torch.nested.as_nested_tensor([values[:3].t(), values[3:].t()]).transpose(1, 2)
    pair = TwoTensor(TwoTensor(values, values + 1), TwoTensor(values + 2, values + 3))
    counted = {"jagged": 1, "narrow": 1, "strided": 1, "pair": 4}
    wrappers: dict[str, Any] = {"jagged": jagged, "narrow": narrow, "strided": strided, "pair": pair}
    for name, wrapper in wrappers.items():
        apart = torch_private.apart(wrapper)
        assert apart is not None
        assert len(apart.inside) == counted[name], name
        again: Any = apart.make([each.clone() for each in apart.inside])
        assert type(again) is type(wrapper)
        assert torch_private.sizes(again) == torch_private.sizes(wrapper), name
        rows, others = (each.unbind() if each.is_nested else [each.a.a, each.b.b] for each in (again, wrapper))
        assert all(map(torch.equal, rows, others)), name
        assert checksum_of_saved(again) == checksum_of_saved(wrapper) is not None
        apart.inside[0][0] += 1
        assert checksum_of_saved(again) != checksum_of_saved(wrapper), name
    assert torch_private.apart(values) is None
