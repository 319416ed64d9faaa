"""Calls that no replay could repeat are refused, and named."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import autockpt
from autockpt import NotApplicable, Plan, Profile
from tests.doors import find_candidates, install, why_unrepeatable
from tests.frames.comparing import steps
from tests.toys.told import Told, around, with_linear

WIDTH = 8
BATCH = torch.linspace(-1, 1, 16 * WIDTH).reshape(16, WIDTH).sin()


def summed(model: nn.Module) -> Tensor:
    total: Tensor = model(BATCH).sum()
    return total


def refused(profile: Profile) -> dict[str, str]:
    candidates = find_candidates(profile)
    return {candidates.index.nodes[index].key: reason for index, reason in candidates.refused}


def normalised(divide: Callable[[nn.Parameter], None]) -> nn.Module:
    """Divides its weight by its norms in every forward."""

    def divides(own: Told, x: Tensor) -> Tensor:
        divide(own.weight)
        return torch.tanh(nn.functional.linear(x, own.weight))

    return Told(divides, weight=nn.Parameter(torch.randn(WIDTH, WIDTH)))


def counted(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.div_(weight.norm(dim=1, keepdim=True))


def uncounted(weight: nn.Parameter) -> None:
    weight.data.div_(weight.data.norm(dim=1, keepdim=True))


def assigned(weight: nn.Parameter) -> None:
    weight.data = weight.data / weight.data.norm(dim=1, keepdim=True)


def domain() -> nn.Module:
    """Gives a child the statistics that it has itself, which that updates."""
    norm = Told(lambda own, x, mean, variance: nn.functional.batch_norm(x, mean, variance, training=True))
    statistics = {"mean": torch.zeros(WIDTH), "variance": torch.ones(WIDTH)}
    return with_linear(lambda own, x: own.norm(own.linear(x), own.mean, own.variance).tanh(), norm=norm, **statistics)


def balances(own: Told, x: Tensor) -> Any:
    """Moves a bias after it has routed by it, as mixtures of experts do that are balanced without a loss."""
    gate = own.router(x, own.bias)
    with torch.no_grad():
        own.bias += 1e-3 * torch.sign(0.5 - gate.mean(0))
    return gate * own.linear(x)


def balanced() -> nn.Module:
    router = with_linear(lambda own, x, bias: torch.sigmoid(own.linear(x) + bias))
    return with_linear(balances, router=router, bias=torch.zeros(WIDTH))


def raises(own: Told, x: Tensor) -> Any:
    """Adds to a tensor of its own before it multiplies by it."""
    with torch.no_grad():
        own.level.add_(1.0)
    return own.linear(x) * own.level


def levelled() -> nn.Module:
    module = with_linear(raises)
    object.__setattr__(module, "level", torch.zeros(WIDTH))  # an attribute like any other, and no buffer
    return module


def masked(softmax: Callable[[Tensor], Tensor]) -> nn.Module:
    """Masks scores behind autograd's back, as attention was written for years."""

    def masks(own: Told, x: Tensor) -> Any:
        scores = own.linear(x)
        scores.data.masked_fill_(torch.arange(WIDTH) % 3 == 0, -float("inf"))
        return own.out(own.softmax(scores))

    return with_linear(masks, softmax=softmax, out=nn.Linear(WIDTH, WIDTH))


def _clip(module: nn.Module, args: object, output: Tensor) -> None:
    output.data.clamp_(-0.05, 0.05)


def clipped() -> nn.Module:
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    layers[0].register_forward_hook(_clip)
    return around(layers, lambda layers, x: layers(x))


@pytest.mark.parametrize(
    ("middle", "call", "reason"),
    [
        (lambda: normalised(counted), "1#0", "changes a parameter"),
        (lambda: normalised(uncounted), "1#0", "changes a parameter"),
        (lambda: normalised(assigned), "1#0", "changes a parameter"),
        (domain, "1.norm#0", "changes a buffer that it is given"),
        (balanced, "1.router#0", "is given a buffer that is changed in place later"),
        (levelled, "1#0", "reads a tensor that is no argument, parameter or buffer"),
    ],
    ids=[
        "parameter",
        "parameter's data",
        "data in place of a parameter's",
        "given statistics",
        "given bias",
        "tensor in an attribute",
    ],
)
def test_what_is_not_a_calls_own_to_change(middle: Callable[[], nn.Module], call: str, reason: str) -> None:
    """Such calls were offered: their replay failed, read what it should not, or changed weights a second time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), middle(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    profile = autockpt.profile(model, BATCH)
    assert refused(profile)[call].startswith(reason)
    plan = autockpt.solve(profile, "lowest")
    assert plan.segments and autockpt.verify(model, BATCH, plan=plan).exact


def attributed(set_it: Callable[[Told, Tensor], None]) -> nn.Module:
    """Sets an attribute of its own in forward."""

    def act(own: Told, x: Tensor) -> Any:
        set_it(own, x)
        return x + own.layers(own.scale * x)

    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    return Told(act, layers=layers, seen=0, scale=1.0, dtype=None)


def notes_dtype(module: Told, x: Tensor) -> None:
    module.dtype = x.dtype


def counts_to_two(module: Told, x: Tensor) -> None:
    module.seen = min(module.seen + 1, 2)


def toggles(module: Told, x: Tensor) -> None:
    module.seen = 1 - module.seen


def scales_the_first(module: Told, x: Tensor) -> None:
    module.scale, module.seen = (1.0, 1) if module.seen else (2.0, 1)


@pytest.mark.parametrize("set_it", [notes_dtype, counts_to_two, toggles, scales_the_first])
def test_attributes_that_forward_sets_are_as_forward_found_them(set_it: Callable[[Told, Tensor], None]) -> None:
    """They refused every block of a new model, as in the routers of Switch transformers."""
    plain, planned = (nn.Sequential(*(attributed(set_it) for _ in range(3)), nn.Linear(WIDTH, 1)) for _ in range(2))
    planned.load_state_dict(plain.state_dict())
    autockpt.apply(planned, budget="lowest")
    assert steps(plain, summed, count=6).differences(steps(planned, summed, count=6)) == []
    plan = autockpt.plan_of(planned)
    assert plan is not None
    assert plan.segments and not plan.refused


@pytest.mark.parametrize(
    "middle",
    [lambda: masked(nn.Softmax(-1)), lambda: masked(functools.partial(torch.softmax, dim=-1)), clipped],
    ids=["between calls", "before a function", "in a hook"],
)
def test_what_is_written_through_data_is_found_by_the_rehearsal(middle: Callable[[], nn.Module]) -> None:
    """No version tells, so that a frame takes it for the result that another call of the run returned."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), middle(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    planned = copy.deepcopy(plain)
    autockpt.apply(planned, budget="lowest")
    assert steps(plain, summed, count=6).differences(steps(planned, summed, count=6)) == []
    assert (plan := autockpt.plan_of(planned)) is not None and plan.segments


def test_an_embedding_that_is_renormalised_is_left_alone() -> None:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4))
    model, batch = nn.Sequential(nn.Embedding(16, WIDTH, max_norm=0.5), *layers), torch.arange(512) % 16
    plan = autockpt.solve(autockpt.profile(model, batch), "lowest")
    assert plan.segments and not any("0#0" in segment.calls for segment in plan.segments)
    assert autockpt.verify(model, batch, plan=plan).exact


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_scripted_modules_are_kept() -> None:
    """Recording failed where one was anywhere in the model."""
    script = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), script, nn.Linear(WIDTH, WIDTH))
    assert refused(autockpt.profile(model, BATCH))["1#0"].startswith("contains a scripted module")
    with pytest.raises(NotApplicable, match="contains a scripted module"):
        install(model, Plan.of(["1"]))


class Blank(nn.LSTM):
    """Draws no weights, for which there would have to be a device."""

    def reset_parameters(self) -> None:
        pass


@pytest.mark.filterwarnings(
    "ignore:PyTorch was compiled without cuDNN", "ignore:Accessing the data pointer of FakeTensor"
)
@pytest.mark.parametrize(
    ("layers", "dropout", "device", "draws"),
    [(2, 0.1, "cuda", True), (2, 0.1, "cpu", False), (1, 0.0, "cuda", False), (2, 0.0, "cuda", False)],
)
def test_dropout_that_cudnn_draws_is_in_no_generator(layers: int, dropout: float, device: str, draws: bool) -> None:
    with FakeTensorMode():
        model = nn.Sequential(Blank(WIDTH, WIDTH, layers, dropout=dropout, device=device), nn.Identity())
    assert ("cuDNN" in why_unrepeatable(model)) == draws
    if draws:
        with pytest.raises(NotApplicable, match="cuDNN draws"):
            install(model, Plan.of(["0"]))


def adds_in_place(own: Told, x: Tensor) -> Any:
    """Reads a buffer in a function that saves none of it, and moves it afterwards."""
    out = torch.addcmul(own.average, own.linear(x), x).sin()
    with torch.no_grad():
        own.average.mul_(0.9).add_(out.detach().mean(0))
    return out


def test_a_function_is_refused_that_is_given_a_buffer_which_moves_later() -> None:
    """As a call is: its replay would read what the buffer has become."""
    model = with_linear(adds_in_place, average=torch.zeros(WIDTH))
    profile = autockpt.profile(model, torch.randn(16, WIDTH))
    with pytest.raises(autockpt.PinError, match="is given a buffer that is changed in place later"):
        autockpt.solve(profile, "1GB", solver="none", recompute="*/addcmul")
