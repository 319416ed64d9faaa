"""Functions and operators in a profile: what they read and make, who saved what, and that looking changes nothing."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, defaultdict
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import autockpt
from autockpt import Plan, Profile, Segment
from tests.doors import find_candidates, function_name, observer
from tests.record.blocks import MODES, Units, block, zoo
from tests.rows import daily
from tests.toys.told import Told, with_linear
from tests.zoo import DAILY, ZOO, Case, build

TRANSFORMERS = ["gpt2", "gpt2-cache", "t5"]

MOSTLY_SWEPT = daily(ZOO, DAILY)


@pytest.mark.parametrize("mode", MODES)
def test_what_each_function_of_a_block_reads_and_makes(mode: Any) -> None:
    profile, units = block(mode)
    before = set(Units(profile, "0#0").makes("linear#0"))
    wide = units.makes("linear#0")
    assert units.reads("linear#0") == before and len(wide) == 1
    assert units.reads("gelu#0") == wide
    assert units.reads("linear#1") == units.makes("gelu#0")
    heads = units.makes("linear#1")
    assert units.reads("view#0", "transpose#0", "scaled_dot_product_attention#0") == heads
    attended = units.makes("scaled_dot_product_attention#0")
    assert len(attended) == 2  # the result, and the logarithms of its sums
    assert units.reads("dropout#0") <= attended | units.makes("reshape#0")
    assert units.reads("relu_#0") < units.makes("dropout#0")
    assert units.makes("relu_#0") == units.makes("view#0") == set()
    assert units.reads("add#0") == before | units.reads("relu_#0")
    assert units.makes("add#0") == set(profile.calls[0].outputs)
    assert units.reads("size#0") == set()
    assert sum(profile.tensors.bytes[tensor] for tensor in wide) == 4 * 4 * 6 * 32


@pytest.mark.parametrize("mode", MODES)
def test_flags_of_the_functions_of_a_block(mode: Any) -> None:
    _, units = block(mode)
    views = {"view#0", "transpose#0", "transpose#1", "reshape#0"}
    assert units.having("alias") - {"reshape#0"} == views - {"reshape#0"} | {"add_#0", "relu_#0"}
    assert units.having("mutates") == {"relu_#0"}  # the counter is a buffer that nothing else is given
    # Fake tensors draw nothing, so there what might draw counts.
    assert units.having("draws") - {"scaled_dot_product_attention#0"} == {"dropout#0"}
    assert units.without_result() == {"size#0"}
    assert "no tensor (int)" in units.refused[units.number["size#0"]]


def test_what_was_saved_in_a_block_is_filed_under_functions_and_operators() -> None:
    profile, units = block()
    saves, ops = profile.saves, profile.ops
    savers = Counter(profile.functions.name[function] for function in saves.function if function >= 0)
    assert savers.keys() == {"linear", "gelu", "scaled_dot_product_attention", "dropout", "relu_"}
    names = {ops.name[op] for op in saves.op}
    assert {"aten.addmm.default", "aten.gelu.default", "aten.relu_.default"} <= names
    gelu = units.number["gelu#0"]
    own_input = [t for t, function in zip(saves.tensor, saves.function, strict=True) if function == gelu]
    assert set(own_input) == units.reads("gelu#0")


def test_operators_of_a_function_are_told_apart() -> None:
    profile, units = block()
    number = units.number["dropout#0"]
    rows = [i for i, function in enumerate(profile.ops.function) if function == number]
    assert len(rows) > 1
    assert {tensor for i in rows for tensor in profile.ops.makes[i]} >= units.makes("dropout#0")
    (relu,) = [i for i, function in enumerate(profile.ops.function) if function == units.number["relu_#0"]]
    assert profile.ops.writes[relu] == profile.ops.reads[relu] and profile.ops.makes[relu] == ()


class Count(TorchFunctionMode):
    """Counts functions at run time, as a frame does: by short name within the innermost call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, int]] = []
        self._stack: list[tuple[str, Counter[str]]] = []
        self._calls: Counter[str] = Counter()
        self._busy = False
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self._open(name))
            module.register_forward_hook(lambda *_: self._close())

    def _open(self, name: str) -> None:
        self._stack.append((f"{name}#{self._calls[name]}", Counter()))
        self._calls[name] += 1

    def _close(self) -> None:
        self._stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function_name(func)
        if self._stack and name != "__get__":
            call, counts = self._stack[-1]
            self.seen.append((call, name, counts[name]))
            counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*TRANSFORMERS, "resnet50", "glue"])
def test_occurrences_are_those_that_a_function_mode_counts_at_run_time(name: str) -> None:
    case = build(name, short=True)
    profile = autockpt.profile(case.model, case.kwargs)
    with Count(case.model) as count:
        case.forward()
    table = profile.functions
    calls = [profile.calls[call].key for call in table.call]
    assert list(zip(calls, table.name, table.occurrence, strict=True)) == count.seen


@pytest.mark.parametrize("name", MOSTLY_SWEPT)
def test_every_save_has_a_function_and_an_operator_that_made_or_read_it(name: str) -> None:
    profile = zoo(name)
    saves, functions, ops = profile.saves, profile.functions, profile.ops
    attributed = [i for i, function in enumerate(saves.function) if function >= 0]
    assert len(attributed) >= 0.95 * len(saves)
    for i in attributed:
        function, op, tensor = saves.function[i], saves.op[i], saves.tensor[i]
        assert functions.call[function] == saves.call[i]
        assert functions.enter[function] < saves.pack[i] < functions.exit[function]
        assert op >= 0
        if tensor >= 0:
            assert tensor in {*functions.reads[function], *functions.makes[function]}
            assert tensor in {*ops.reads[op], *ops.makes[op]}
    assert not any("functions" in note for note in profile.notes)


@pytest.mark.parametrize("name", ["gpt2", "t5", "resnet50", "unet", "densenet", "glue"])
def test_the_operators_reproduce_on_paper_what_each_call_saves(name: str) -> None:
    profile = zoo(name)
    candidates = find_candidates(profile)
    refused = {candidates.index.nodes[call].key for call, _ in candidates.refused}
    ops, saves = profile.ops, profile.saves
    for index, call in enumerate(profile.calls):
        if call.key in refused:
            continue
        known = {argument.tensor for argument in call.arguments} | {-1}
        for i, owner in enumerate(ops.call):
            if index <= owner < call.stop:
                assert known.issuperset(ops.reads[i]), (call.key, ops.name[i])
                known.update(ops.makes[i])
        inside = range(index, call.stop)
        assert known.issuperset(t for t, c in zip(saves.tensor, saves.call, strict=True) if c in inside)


def test_a_cast_that_autocast_had_in_its_cache_was_not_read(bfloat16: None) -> None:
    def casts(own: Told, hidden: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return own.linear(own.linear(hidden).relu())

    profile = autockpt.profile(with_linear(casts), torch.randn(4, 8))
    between, second = Units(profile, "#0").makes("relu#0"), Units(profile, "linear#1")
    saved = {t for t, function in zip(profile.saves.tensor, profile.saves.function, strict=True) if function == 2}
    (weight,) = saved - between
    assert profile.tensors.bytes[weight] == 2 * 8 * 8
    assert second.reads("linear#0") == between
    assert weight not in second.makes("linear#0")


def test_what_a_custom_autograd_function_saves_has_no_function() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = 2 * ctx.saved_tensors[0] * gradients[0]
            return out

    custom = Told(lambda own, x: Square.apply(x))  # type: ignore[no-untyped-call]
    profile = autockpt.profile(nn.Sequential(nn.Linear(8, 8), custom), torch.randn(4, 8))
    saved = dict(zip((profile.calls[call].key for call in profile.saves.call), profile.saves.function, strict=True))
    assert saved["1#0"] == -1 and saved["0#0"] >= 0


@pytest.mark.parametrize("mode", MODES)
def test_seconds_of_operators_add_up_to_those_of_their_function(mode: Any) -> None:
    case = build("gpt2-cache", short=True)
    profile = autockpt.profile(case.model, case.kwargs, mode=mode)
    sums = [0.0] * len(profile.functions)
    for function, seconds in zip(profile.ops.function, profile.ops.seconds, strict=True):
        if function >= 0:
            sums[function] += seconds
    for i in set(profile.ops.function) - {-1}:
        assert sums[i] == pytest.approx(profile.functions.seconds[i], rel=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_seconds_of_functions_add_up_to_at_most_those_of_their_call(mode: Any) -> None:
    case = build("gpt2-cache", short=True)
    profile = autockpt.profile(case.model, case.kwargs, mode=mode)
    equal_calls: dict[str, list[float]] = defaultdict(list)
    for call in profile.calls:
        equal_calls[call.signature].append(call.forward_seconds)
    sums = [0.0] * len(profile.calls)
    for number, seconds in zip(profile.functions.call, profile.functions.seconds, strict=True):
        sums[number] += seconds
    for index, call in enumerate(profile.calls):
        assert sums[index] <= statistics.median(equal_calls[call.signature]) * (1 + 1e-4)
        if mode == "fake" and call.stop == index + 1:  # it has no children
            assert sums[index] == pytest.approx(call.forward_seconds, rel=1e-4)


def lives(profile: Profile) -> list[tuple[int, int, int]]:
    """Bytes of each tensor and when it died, in births instead of ticks, so that markers do not matter."""
    tensors = profile.tensors
    deaths = [[bisect.bisect_left(tensors.birth, tick) for tick in ticks] for ticks in (tensors.natural, tensors.death)]
    return list(zip(tensors.bytes, *deaths, strict=True))


@pytest.mark.parametrize("name", MOSTLY_SWEPT)
def test_the_function_mode_changes_no_birth_and_no_death(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(case: Case) -> Profile:
        return autockpt.profile(case.model, case.kwargs)

    watched = recorded(build(name, short=True))
    monkeypatch.setattr(observer, "routed_functions", lambda *_: nullcontext())
    plain = recorded(build(name, short=True))
    assert len(watched.functions) > 0 and len(plain.functions) == 0
    assert lives(watched) == lives(plain)
    assert watched.saves.tensor == plain.saves.tensor


def caches(own: Told, hidden: torch.Tensor) -> Any:
    """Makes a table in its first forward, as rotary embeddings do."""
    if own.table is None:
        own.table = torch.ones(8).cumsum(0)
    return hidden.sigmoid() * own.table


def test_functions_that_ran_only_in_the_first_forward_do_not_hide_the_operators() -> None:
    profile = autockpt.profile(nn.Sequential(nn.Linear(8, 8), Told(caches, table=None)), torch.randn(4, 8))
    assert not profile.notes
    assert profile.ops.name == ("aten.addmm.default", "aten.sigmoid.default", "aten.mul.Tensor")
    assert not profile.refused("result")


def test_a_function_that_raises_is_refused() -> None:
    def tries(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        try:
            return hidden @ hidden
        except RuntimeError:
            return hidden @ hidden.t()

    units = Units(autockpt.profile(nn.Sequential(nn.Linear(8, 8), Told(tries)), torch.randn(4, 8)), "1#0")
    assert units.without_result() == {"matmul#0"}
    assert units.makes("matmul#0") == set() and len(units.makes("matmul#1")) == 1


def test_what_returns_an_empty_tensor_is_refused_for_another_step_may_fill_it() -> None:
    """No storage tells what reads it: what an expert without tokens was given was skipped, and read a step later."""

    def routes(own: Told, hidden: torch.Tensor) -> torch.Tensor:
        (rows,) = torch.nonzero(hidden[:, 0] > 9.0, as_tuple=True)
        return hidden.index_add(0, rows, hidden[rows].tanh())

    units = Units(autockpt.profile(nn.Sequential(nn.Linear(8, 8), Told(routes)), torch.randn(4, 8)), "1#0")
    assert units.without_result() == {"nonzero#0", "__getitem__#1", "tanh#0"}


def test_the_loss_outside_the_model_is_no_function_of_a_call() -> None:
    model, batch = nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8)
    profile = autockpt.profile(model, batch, loss=lambda out: out.exp().sum())
    assert profile.functions.name == ("linear",) and profile.ops.name == ("aten.addmm.default",)
    assert profile.saves.function == (0, -1)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # torch.compile loads torch.jit
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning",  # Dynamo reads it
)
def test_compiled_modules_are_recorded_uncompiled() -> None:
    model, batch = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU())), torch.randn(4, 8)
    plain = autockpt.profile(model, batch)
    model[1].compile(backend="eager")
    model(batch).sum().backward()
    model.zero_grad(set_to_none=True)
    compiled = autockpt.profile(model, batch)
    assert compiled.functions.name == plain.functions.name
    assert lives(compiled) == lives(plain)
    assert any("compiled (1)" in note for note in compiled.notes)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("times", "read", "shared"), [(1, False, False), (2, False, True), (1, True, True)])
def test_a_buffer_that_one_function_alone_uses_is_its_own_affair(
    mode: Any, times: int, read: bool, shared: bool
) -> None:
    def normed(own: Told, x: torch.Tensor) -> Any:
        for _ in range(times):
            x = own.norm(x).tanh()
        return x * own.norm.running_mean if read else x

    model = Told(normed, norm=nn.BatchNorm1d(8))
    profile = autockpt.profile(model, torch.randn(16, 8), mode=mode)
    functions = profile.functions
    mutates = [functions.mutates[i] for i, name in enumerate(functions.name) if name == "batch_norm"]
    assert mutates == [shared] * times
    norms = [call for call in profile.calls if call.class_name == "BatchNorm1d"]
    assert all("norm.running_mean" in call.buffers for call in norms)


def test_a_buffer_that_is_changed_after_a_call_is_one_that_its_replay_needs_as_it_was() -> None:
    """A replay comes later than that, and read what was there by then."""

    def moves(own: Told, x: torch.Tensor) -> Any:
        y = own.shifts(x)
        with torch.no_grad():
            own.shifts.level.add_(1.0)
        return torch.tanh(y)

    def moved() -> nn.Module:
        shifts = with_linear(lambda own, x: torch.tanh(own.linear(x) + own.level), level=torch.zeros(8))
        return Told(moves, shifts=shifts)

    model, batch = nn.Sequential(nn.Linear(8, 8), moved(), nn.Linear(8, 1)), torch.randn(64, 8)
    profile = autockpt.profile(model, batch)
    (call,) = (each for each in profile.calls if each.key == "1.shifts#0")
    assert call.buffers == ("1.shifts.level",)
    plan = Plan(segments=(Segment(calls=(call.key,), parent="1#0", buffers=call.buffers),))
    assert autockpt.verify(model, batch, plan=plan).exact
