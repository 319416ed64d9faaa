"""What a module keeps between calls: statistics, weights made anew in every forward, parameters that come and go."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrizations

import autockpt
from autockpt import Plan
from tests.frames.comparing import assert_same, steps
from tests.frames.models import WIDTH, batch, cnn, images, mlp, summed
from tests.frames.test_lifetime import events
from tests.toys.told import Told, with_linear
from tests.twin import counting_replays

QUIET = pytest.mark.filterwarnings("ignore:.*torch.nn.utils.weight_norm.* is deprecated:FutureWarning")


def refused(model: nn.Module) -> dict[str, str]:
    plan = autockpt.solve(autockpt.profile(model, batch(64, WIDTH)), "1GB")
    return {refusal.call: refusal.reason for refusal in plan.refused}


@pytest.mark.parametrize("momentum", [0.1, 0.0, None], ids=["moving", "still", "cumulative"])
@pytest.mark.parametrize("plan", [["0"], [["0", "1"]], ["0.1", "1.1"], [["0", "1", "2", "3", "4"]]], ids=str)
def test_statistics_of_batches_are_counted_once_over_three_steps(plan: Any, momentum: float | None) -> None:
    """A replay that stops early ends after, before or in a normalisation, as the plan has it."""
    model = cnn()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    plain, planned = copy.deepcopy(model), autockpt.apply(copy.deepcopy(model), plan=Plan.of(plan))
    expected, found = steps(plain, images, count=3), steps(planned, images, count=3)
    assert expected.differences(found) == []
    assert {name: int(b) for name, b in found.of("buffer").items() if "tracked" in name} == {
        f"{i}.1.num_batches_tracked": 3 for i in range(3)
    }


def test_a_batch_with_an_infinity_leaves_the_same_statistics() -> None:
    def run(model: nn.Module) -> Tensor:
        x = batch(2, 3, 6, 6).clone()
        x[0, 0, 0, 0] = torch.inf
        out: Tensor = model(x).square().mean()
        return out

    plain, planned = cnn(), autockpt.apply(cnn(), plan=Plan.of([["0", "1"]]))
    found = [steps(model, run, count=1).of("buffer") for model in (plain, planned)]
    assert any(buffer.isnan().any() for buffer in found[0].values() if buffer.is_floating_point())
    assert all(torch.equal(found[0][name].nan_to_num(7), found[1][name].nan_to_num(7)) for name in found[0])


NORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "spectral_norm": parametrizations.spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "old spectral_norm": torch.nn.utils.spectral_norm,
    "old weight_norm": lambda module: torch.nn.utils.weight_norm(module),
}


def normed(kind: str) -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(NORMS[kind](nn.Linear(WIDTH, WIDTH)), nn.Tanh())
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), inner, nn.Linear(WIDTH, 1))


@QUIET
@pytest.mark.parametrize("plan", [["1"], ["1.0"], [["1.0", "1.1"]], [["0", "1"]]], ids=str)
@pytest.mark.parametrize("kind", NORMS)
def test_weights_that_every_forward_makes_anew(kind: str, plan: Any) -> None:
    plain, planned = normed(kind), autockpt.apply(normed(kind), plan=Plan.of(plan))  # the old ones cannot be copied
    expected = steps(plain, summed)
    with counting_replays() as replays:
        assert expected.differences(steps(planned, summed)) == []
    assert replays


@QUIET
@pytest.mark.parametrize("kind", ["old spectral_norm", "old weight_norm"])
def test_a_replay_leaves_the_weight_that_the_last_forward_made(kind: str) -> None:
    model: Any = normed(kind)
    autockpt.apply(model, plan=Plan.of(["1"]))
    loss = summed(model)
    weight = model[1][0].weight
    loss.backward()
    assert model[1][0].weight is weight


@QUIET
@pytest.mark.parametrize("kind", ["old spectral_norm", "old weight_norm"])
def test_modules_that_bind_their_weight_in_forward_are_refused_by_the_recorder(kind: str) -> None:
    assert "closure or attribute" in refused(normed(kind))["1.0#0"]


def dropping() -> Told:
    """Binds a weight with dropped entries before every call of its layer, as recurrent nets do (DropConnect)."""
    torch.manual_seed(0)
    enter, layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    raw = nn.Parameter(layer.weight.detach().clone())
    del layer.weight
    layer.weight = raw.detach().clone()
    return Told(drops, enter=enter, layer=layer, raw=raw)


def drops(own: Told, x: Tensor) -> Tensor:
    x = own.enter(x)
    for _ in range(2):
        own.layer.weight = nn.functional.dropout(own.raw, 0.5)
        x = own.layer(x).tanh() * x
    return x


@pytest.mark.parametrize("plan", [["layer#0"], ["layer#1"], [["layer#0", "layer#1"]]], ids=str)
def test_a_weight_bound_anew_between_two_calls_of_one_layer(plan: Any) -> None:
    """The replay of the first call must not take the weight of the second."""
    assert_same(dropping(), plan, summed)


def test_a_weight_in_an_attribute_changed_in_place_raises() -> None:
    model = dropping()
    autockpt.apply(model, plan=Plan.of(["layer#1"]), check="never")
    loss = summed(model)
    model.layer.weight.data.zero_()
    model.layer.weight.detach().mul_(2)
    with pytest.raises(RuntimeError, match=r"layer#1: .* modified by an inplace operation"):
        loss.backward()


def test_parameters_whose_storage_is_away_between_forward_and_backward() -> None:
    """Sharding frees a parameter's memory after forward and brings it back for backward; frozen ones too."""
    model = mlp()
    model.get_submodule("3").requires_grad_(False)

    def run(module: nn.Module) -> Tensor:
        loss = summed(module)
        away = [(parameter, parameter.data) for parameter in module.parameters()]
        for parameter, _ in away:
            parameter.data = torch.empty(0)
        for parameter, data in away:
            parameter.data = data.clone()
        return loss

    assert_same(model, [[str(i) for i in range(12)]], run)


def test_a_parameter_whose_storage_is_away_takes_no_memory() -> None:
    """What autograd is handed of it leads to the parameter, and to no storage that it had in forward."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)))
    autockpt.apply(model, plan=Plan.of([["0", "1"]]))
    loss = summed(model)
    gathered = [StorageWeakRef(parameter.untyped_storage()) for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.data = torch.empty(0)
    assert all(storage.expired() for storage in gathered)
    del loss


def test_weights_are_held_by_reference_and_not_by_copy() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    autockpt.apply(model, plan=Plan.of([["0", "1", "2", "3"]]))
    x, kept = batch(1, 64), []

    def forward() -> None:
        kept.append(model(x))

    forward()
    assert events(forward)[-1] < 4 * 64 * 64  # bytes of one weight


def codebook() -> Told:
    """Reads and moves its buffer in forward."""
    torch.manual_seed(0)
    return with_linear(moves, codes=torch.randn(5, WIDTH))


def moves(own: Told, x: Tensor) -> Any:
    x = own.linear(x)
    nearest = torch.cdist(x, own.codes).argmin(-1)
    out = x + (own.codes[nearest] - x).detach() * x.sin()
    if own.training:
        own.codes.index_add_(0, nearest, x.detach(), alpha=0.1)
    return out


@pytest.mark.parametrize("plan", [["0"], [["0", "1"]], ["0", "1"]], ids=str)
def test_codes_that_forward_reads_and_then_moves(plan: Any) -> None:
    assert_same(nn.Sequential(codebook(), codebook(), nn.Linear(WIDTH, 1)), plan, summed)


def test_running_statistics_that_are_saved_and_then_written_raise_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """What an InstanceNorm saves of its statistics it writes afterwards; backward does not read it."""
    norm = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.InstanceNorm1d(6, affine=True, track_running_stats=True), nn.Tanh()
    )
    plain = nn.Sequential(norm, nn.Linear(WIDTH, 1))
    planned = copy.deepcopy(plain)
    autockpt.apply(planned, plan=Plan.of(["0"]), check="always")
    for _ in range(3):
        for model in (plain, planned):
            model(batch(4, 6, WIDTH)).square().sum().backward()
    assert all(map(torch.equal, plain.state_dict().values(), planned.state_dict().values())) and not caplog.records


class Warms(nn.Linear):
    """Scales by a number that it counts up at its weight or at a buffer."""

    def __init__(self, holder: str) -> None:
        super().__init__(WIDTH, WIDTH)
        self.holder = holder
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        held: Any = getattr(self, self.holder)
        held.calls = getattr(held, "calls", 0) + 1
        out: Tensor = torch.tanh(super().forward(x) * (1 - 0.5**held.calls))
        return out


@pytest.mark.parametrize("holder", ["weight", "scale"])
def test_what_a_forward_counts_at_a_parameter_or_buffer_is_counted_once(holder: str) -> None:
    """Per-sample gradients, scales that warm up and caches of quantized weights are kept there."""
    found = []
    for budget in (None, "lowest"):
        torch.manual_seed(0)
        model = nn.Sequential(*(Warms(holder) for _ in range(6)))
        if budget is not None:
            autockpt.apply(model, budget)
        run = steps(model, lambda model: model(batch(256, WIDTH)).square().mean(), count=6)
        plan = autockpt.plan_of(model)
        found.append((run, [getattr(layer, holder).calls for layer in model], len(plan.segments) if plan else 0))
    (plain, once, _), (planned, counted, segments) = found
    assert plain.differences(planned) == []
    assert counted == once == [6] * 6
    assert segments  # the calls are recomputed: they are not kept for it


def test_attributes_of_weights_that_hooks_count_at_are_put_back() -> None:
    """As per-sample gradients of Opacus count uses of a parameter."""

    def used(module: nn.Module, *_: Any) -> None:
        for parameter in module.parameters():
            vars(parameter)["uses"] = vars(parameter).get("uses", 0) + 1

    model = mlp()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(used)
    autockpt.apply(model, plan=Plan.of([["1", "2"], ["3", "4"]]))
    steps(model, summed, count=3)
    assert {vars(parameter)["uses"] for parameter in model.parameters()} == {3}


def test_a_tensor_with_a_graph_at_a_parameter_does_not_keep_a_replay_alive() -> None:
    def keeps(own: Told, x: Tensor) -> Any:
        weight: Any = own.linear.weight
        last = getattr(weight, "last", None)
        out = own.linear(x).tanh() * (1 if last is None else 1 + last.detach().mean())
        weight.last = out
        return out.sin()

    torch.manual_seed(0)
    assert_same(nn.Sequential(*(with_linear(keeps) for _ in range(3))), ["0", "1"], summed)


class Struct(msgspec.Struct):
    n: int = 0


def taken(own: Told, x: Tensor) -> Any:
    return own.linear(x).tanh() * (1 + 0.1 * own.held.pop())


def counted(own: Told, x: Tensor) -> Any:
    own.held.n += 1
    return own.linear(x).tanh() * (1 + 0.1 * own.held.n)


@pytest.mark.parametrize(
    ("forward", "make"),
    [(taken, lambda: set(range(1, 100))), (counted, Struct)],
    ids=["a set's order", "a class of C's"],
)
def test_what_is_not_put_back_as_it_was_is_not_replayed(forward: Any, make: Any) -> None:
    """A set that was emptied gives its items in another order; objects of an extension refuse `object.__setattr__`."""
    found = []
    for plan in (Plan(), Plan.of(["0", "1"])):
        torch.manual_seed(0)
        model = nn.Sequential(*(with_linear(forward, held=make()) for _ in range(3)))
        autockpt.apply(model, plan=plan)
        found.append(steps(model, summed, count=4))
    assert found[0].differences(found[1]) == []


calls = 0


def counts_calls(own: Told, x: Tensor) -> Any:
    global calls
    calls += 1
    return own.linear(x).tanh() * (1 + 0.1 * calls)


def test_the_call_that_counts_is_named_and_not_its_neighbour(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    plain = [with_linear(lambda own, x: own.linear(x).tanh()) for _ in range(2)]
    model = nn.Sequential(plain[0], with_linear(counts_calls), plain[1])
    autockpt.apply(model, plan=Plan.of([["0", "1", "2"]]))
    steps(model, summed, count=2)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("1#0 is kept from now on") and "changes calls" in said


def test_what_begins_to_change_late_is_put_back_where_every_replay_is_looked_at() -> None:
    def cools(own: Told, x: Tensor) -> Any:
        own.n += 1
        if own.n > 2:
            own.settings["tau"] *= 0.9
        return own.linear(x).tanh() * own.settings["tau"]

    found = []
    for plan in (Plan(), Plan.of(["0", "1"])):
        torch.manual_seed(0)
        model = nn.Sequential(*(with_linear(cools, n=0, settings={"tau": 1.0}) for _ in range(3)))
        autockpt.apply(model, plan=plan, check="always")
        found.append(steps(model, summed, count=5))
    assert found[0].differences(found[1]) == []
