"""`autockpt.recompute`: functions that recompute by themselves, bit for bit as the plain call."""

from __future__ import annotations

import copy
import functools
import logging
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autockpt
from autockpt import Plan
from tests.doors import install
from tests.frames.comparing import assert_frames_go
from tests.twin import Outcome, counting_replays, left_by

WIDTH = 16
Wrap = Callable[[Any], Any]
"""`autockpt.recompute`, or what leaves a function as it is."""
Build = Callable[[Wrap], tuple[nn.Module, Callable[[Tensor], Any]]]
"""Makes a model, and what returns its loss."""


def plain(function: Any) -> Any:
    return function


def net(width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.GELU(), nn.Dropout(0.3), nn.Linear(2 * width, width)
    )


def trained(build: Build, wrap: Wrap, steps: int = 3) -> Outcome:
    """Train a few steps; return all that is left: losses, gradients, buffers, the gradient of the input, generators."""
    torch.manual_seed(0)
    random.seed(0)
    model, loss_of = build(wrap)
    found: dict[str, Tensor | None] = {}
    for number in range(steps):
        model.zero_grad()
        given = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number)).requires_grad_()
        loss = loss_of(given)
        loss.backward()
        found |= {f"loss {number}": loss.detach().clone(), f"input {number}": given.grad}
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.01)
    return Outcome(left_by(model) | found | {"python": torch.tensor(random.random(), dtype=torch.double)})


def assert_same(build: Build, *, replays: bool | None = True) -> None:
    """Assert that `autockpt.recompute` changes nothing that is left, and that something is replayed where it should."""
    expected = trained(build, plain)
    with counting_replays() as replayed:
        found = trained(build, autockpt.recompute)
    assert expected.differences(found) == []
    assert replays is None or bool(replayed) == replays


def saved_bytes(run: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """Bytes that autograd itself saves in a run, each storage once."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, plain):
        result = run()
    return sum(storages.values()), result


class Mixer(nn.Module):
    """Recomputes in its own forward: a method, decorated or wrapped, or a lambda."""

    def __init__(self, wrap: Wrap, way: str = "method") -> None:
        super().__init__()
        self.norm, self.inner, self.way, self.wrap = nn.LayerNorm(WIDTH), net(), way, wrap

    def mix(self, hidden: Tensor, *, scale: float = 1.0) -> Any:
        return self.inner(self.norm(hidden)) * scale + hidden.sin()

    def forward(self, hidden: Tensor) -> Any:
        wrap, hidden = self.wrap, hidden * 1.5
        if self.way == "method":
            return wrap(self.mix)(hidden, scale=0.5)
        if self.way == "partial":
            return wrap(functools.partial(self.mix, scale=0.5))(hidden)
        if self.way == "module":
            return hidden + wrap(self.inner)(hidden)
        return wrap(lambda x: self.mix(x, scale=0.5))(hidden)


# --- what a function may be ---


@pytest.mark.parametrize("way", ["method", "partial", "module", "lambda"])
def test_each_kind_of_function_is_as_plain(way: str) -> None:
    def build(wrap: Wrap) -> Any:
        model = nn.Sequential(Mixer(wrap, way), Mixer(wrap, way))
        return model, lambda x: model(x).square().mean()

    assert_same(build)


def test_a_decorated_method_is_a_method() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        @autockpt.recompute
        def forward(self, hidden: Tensor) -> Any:
            """Its docstring."""
            return self.inner(hidden).tanh()

    assert Block.forward.__doc__ == "Its docstring." and Block.forward.__name__ == "forward"
    torch.manual_seed(0)
    one = Block()
    other = copy.deepcopy(one)
    for model in (one, other):
        torch.manual_seed(1)
        model(torch.ones(8, WIDTH)).sum().backward()
    assert left_by(one).keys() == left_by(other).keys()
    assert Outcome(left_by(one)).differences(Outcome(left_by(other))) == []


def test_a_deep_copy_of_an_object_has_its_own() -> None:
    """The wrapped method of the copy called the modules of the original."""
    torch.manual_seed(0)
    one: Any = Mixer(autockpt.recompute)
    one.run = autockpt.recompute(one.mix)
    other = copy.deepcopy(one)
    other.run(torch.ones(8, WIDTH)).sum().backward()
    assert one.norm.weight.grad is None and other.norm.weight.grad is not None


def test_arguments_by_keyword_in_containers_and_of_no_tensor() -> None:
    class Found:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    def mixed(parts: dict[str, Any], *rest: Any, scale: float, found: Found, flag: bool) -> dict[str, Any]:
        made = sum(parts["all"]) * scale + rest[0] @ parts["weight"]
        return {"out": made.tanh() if flag else made, "view": made.exp()[:2], "name": "mixed", "of": found.value.sin()}

    def build(wrap: Wrap) -> Any:
        model = nn.Linear(WIDTH, WIDTH)

        def loss(x: Tensor) -> Any:
            parts = {"all": [x, x * 2], "weight": model.weight}
            out = wrap(mixed)(parts, x, scale=0.5, found=Found(x * 3), flag=True)
            assert out["name"] == "mixed" and out["view"].shape == (2, WIDTH)
            return out["out"].sum() + out["view"].square().sum() + out["of"].sum()

        return model, loss

    assert_same(build)


@pytest.mark.parametrize("wrong", [3, "block", None, nn.Linear, Mixer])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"autockpt\.recompute was given "):
        autockpt.recompute(wrong)


def test_functions_whose_body_does_not_run_in_the_call_are_refused() -> None:
    def steps(x: Tensor) -> Iterator[Tensor]:
        yield x

    async def later(x: Tensor) -> Any:
        return x

    class Yields(nn.Module):
        def forward(self, x: Tensor) -> Iterator[Tensor]:
            yield x

    class Called:
        def __call__(self, x: Tensor) -> Iterator[Tensor]:
            yield x

    for wrong in (steps, later, Yields(), Called(), functools.partial(steps), Yields().forward):
        with pytest.raises(TypeError, match="whose body does not run in the call: it is a generator or async"):
            autockpt.recompute(wrong)


# --- what it reaches ---


def test_names_that_a_loop_binds_anew() -> None:
    """A closure has the object of its forward: `h` and `layer` are others by the time of backward."""

    def build(wrap: Wrap) -> Any:
        model = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def loss(x: Tensor) -> Any:
            h, seen = x * 0.5, [x]
            for layer in model:
                h = wrap(lambda given: torch.tanh(layer(given) + h) * seen[-1])(x)  # noqa: B023
                seen.append(h)
            return h.sum()

        return model, loss

    assert_same(build)


def test_what_a_closure_counts_is_counted_once() -> None:
    def build(wrap: Wrap) -> Any:
        model, counts = nn.Linear(WIDTH, WIDTH), {"calls": 0}
        total = 0

        def count(x: Tensor) -> Any:
            nonlocal total
            total += 1
            counts["calls"] += 1
            return (model(x) * total).sin() * counts["calls"]

        def loss(x: Tensor) -> Any:
            out: Tensor = wrap(count)(x).sum()
            return out + total + counts["calls"]

        return model, loss

    assert_same(build)


def test_random_numbers_of_every_source() -> None:
    own = torch.Generator()

    def drawing(x: Tensor, generator: torch.Generator) -> Any:
        noise = torch.rand(x.shape, generator=own) + torch.rand(x.shape, generator=generator) + random.random()
        return nn.functional.dropout(x * noise, 0.4).exp()

    def build(wrap: Wrap) -> Any:
        given, model = torch.Generator().manual_seed(4), nn.Linear(WIDTH, WIDTH)
        own.manual_seed(3)

        def loss(x: Tensor) -> Any:
            out: Tensor = wrap(drawing)(wrap(drawing)(model(x), given), given).sum()
            return out + torch.rand((), generator=own) + torch.rand((), generator=given)

        return model, loss

    assert_same(build)


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_of_forward_is_that_of_the_replay(cache: bool) -> None:
    def build(wrap: Wrap) -> Any:
        model = net()

        def loss(x: Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
                out = wrap(model)(x) + model[0](x).sum()
            return out.float().square().mean()

        return model, loss

    assert_same(build)


def test_the_mode_of_modules_may_change_before_backward() -> None:
    def build(wrap: Wrap) -> Any:
        model = net()

        def loss(x: Tensor) -> Any:
            model.train()
            out: Tensor = wrap(lambda given: model(given).tanh())(x).sum()
            model.eval()
            model[0].requires_grad_(not model[0].weight.requires_grad)
            return out

        return model, loss

    assert_same(build)


MODEL = net()


@autockpt.recompute
def through_a_global(x: Tensor) -> Any:
    """Reach a module that only a global leads to."""
    return MODEL(x).tanh()


def test_a_module_that_a_global_leads_to_runs_as_in_forward() -> None:
    def build(wrap: Wrap) -> Any:
        model = copy.deepcopy(fresh)
        for mine, its in zip(MODEL.modules(), model.modules(), strict=True):
            mine.__dict__.update(its.__dict__)
        function = through_a_global if wrap is autockpt.recompute else through_a_global.__wrapped__  # type: ignore[attr-defined]
        return MODEL, lambda x: function(x).sum()

    torch.manual_seed(0)
    fresh = net()
    assert_same(build)


def test_a_parameter_that_is_changed_before_backward_is_refused_as_in_the_plain_step() -> None:
    weight = torch.randn(WIDTH, WIDTH, requires_grad=True)
    for _ in range(2):
        out = autockpt.recompute(lambda x: (x @ weight).tanh())(torch.ones(2, WIDTH, requires_grad=True)).sum()
        with torch.no_grad():
            weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


# --- what cannot be replayed ---


counts: list[int] = []


def through_a_list(x: Tensor) -> Any:
    """Change a global, and compute with it."""
    counts.append(1)
    return (x * len(counts)).sin()


def test_a_function_that_changes_what_no_replay_restores_is_kept_and_named(caplog: pytest.LogCaptureFixture) -> None:
    def build(wrap: Wrap) -> Any:
        counts.clear()
        model = nn.Linear(WIDTH, WIDTH)
        return model, lambda x: wrap(through_a_list)(model(x)).sum() + len(counts)

    with caplog.at_level(logging.WARNING, "autockpt"):
        assert_same(build, replays=None)
    (said,) = [each for each in caplog.messages if "is kept from now on" in each]
    assert said.startswith("through_a_list is kept from now on, since it changes counts, which a replay would do again")
    assert said.endswith("autockpt.recompute saves no memory for it.")


@pytest.mark.parametrize("way", ["argument", "module"])
def test_what_is_written_after_it_was_read_is_kept(way: str, caplog: pytest.LogCaptureFixture) -> None:
    noisy = nn.RReLU()

    def argument(x: Tensor) -> Any:
        return x.sin_().exp()

    def module(x: Tensor) -> Any:
        return noisy(x.tanh()).exp()

    function = {"argument": argument, "module": module}[way]

    def build(wrap: Wrap) -> Any:
        model = nn.Linear(WIDTH, WIDTH)
        return model, lambda x: wrap(function)(model(x)).sum()

    with caplog.at_level(logging.WARNING, "autockpt"):
        assert_same(build, replays=None)
    assert any(f"{way} is kept from now on" in each for each in caplog.messages)


def test_noise_that_is_drawn_after_it_was_saved_is_an_error_that_names_the_function() -> None:
    """Only its replay shows it, and what forward saved is not what backward should read."""
    x = torch.ones(4, requires_grad=True)
    noisy = autockpt.recompute(lambda given: nn.functional.rrelu(given.tanh() - 1, training=True).exp())
    with pytest.raises(
        autockpt.ReplayError, match=r"lambda.* draws the noise of an RReLU .* take autockpt\.recompute "
    ):
        noisy(x).sum().backward()
    noisy(x).sum().backward()  # it is kept now


# --- what is around it ---


def test_nested_in_one_another() -> None:
    def build(wrap: Wrap) -> Any:
        model = nn.Sequential(net(), net())

        def inner(x: Tensor, *, layer: nn.Module) -> Any:
            return layer(x).tanh() + x

        def outer(x: Tensor) -> Any:
            return wrap(functools.partial(inner, layer=model[1]))(wrap(inner)(x, layer=model[0]).sin()).exp()

        return model, lambda x: wrap(outer)(x).mean()

    assert_same(build)


def test_inside_and_around_torchs_checkpoint() -> None:
    def build(wrap: Wrap) -> Any:
        model = nn.Sequential(net(), net())

        def inside(x: Tensor) -> Any:
            out: Tensor = checkpoint(wrap(model[0]), x.sin(), use_reentrant=False)
            return out

        def around(x: Tensor) -> Any:
            out: Tensor = wrap(lambda given: checkpoint(model[1], given.cos(), use_reentrant=False))(x)
            return out

        return model, lambda x: around(inside(x)).mean()

    assert_same(build)


@pytest.mark.parametrize(
    "plan",
    [
        [["0", "1"]],
        [["0"], ["1"]],
        [["1.mixer"]],
        [["0.mixer.inner"], ["1"]],
    ],
)
def test_inside_a_segment_that_is_recomputed(plan: list[list[str]]) -> None:
    """Calls of a plan inside the function run plain there."""

    class Wrapped(nn.Module):
        def __init__(self, wrap: Wrap, way: str) -> None:
            super().__init__()
            self.mixer = Mixer(wrap, way)

        def forward(self, x: Tensor) -> Any:
            return self.mixer(x).tanh() + x

    def build(wrap: Wrap) -> Any:
        model = nn.Sequential(*(Wrapped(wrap, way) for way in ("method", "lambda")))
        if wrap is autockpt.recompute:
            install(model, Plan.of([tuple(each) for each in plan]), check="sampled")
        return model, lambda x: model(x).square().mean()

    assert_same(build)


def test_a_function_that_turns_out_to_be_kept_is_replayed_as_its_forward_ran() -> None:
    """Its refusal comes while segments around it still wait for their replays."""

    def build(wrap: Wrap) -> Any:
        counts.clear()

        class Counts(nn.Linear):
            def forward(self, x: Tensor) -> Any:
                out: Tensor = wrap(through_a_list)(super().forward(x).tanh())
                return out.sin()

        model = nn.Sequential(*(Counts(WIDTH, WIDTH) for _ in range(3)))
        if wrap is autockpt.recompute:
            install(model, Plan.of([("0",), ("1", "2")]), check="sampled")
        return model, lambda x: model(x).sum()

    assert_same(build, replays=None)


def test_without_gradients_it_only_calls() -> None:
    model = Mixer(autockpt.recompute).eval()
    twin = copy.deepcopy(model)
    twin.wrap = plain
    x = torch.randn(8, WIDTH)
    with counting_replays() as replayed:
        for off in (torch.no_grad(), torch.inference_mode()):
            with off:
                assert torch.equal(model(x), twin(x)) and not model(x).requires_grad
    assert not replayed


def test_gradient_accumulation_and_two_backwards_of_one_forward() -> None:
    def build(wrap: Wrap) -> Any:
        model = net()

        def loss(x: Tensor) -> Any:
            for part in x.detach().split(4):
                wrap(model)(part).square().mean().backward()
            out: Tensor = wrap(lambda given: model(given).tanh())(x).sum()
            out.backward(retain_graph=True)
            return out

        return model, loss

    assert_same(build)


def test_double_backward() -> None:
    def build(wrap: Wrap) -> Any:
        model = nn.Linear(WIDTH, WIDTH)

        def loss(x: Tensor) -> Any:
            out = wrap(lambda given: model(given).tanh().pow(3))(x).sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            return out + wrap(lambda given: given.square().exp())(slope).sum()

        return model, loss

    assert_same(build)


def test_a_gradient_that_the_function_takes_itself() -> None:
    def build(wrap: Wrap) -> Any:
        model = nn.Linear(WIDTH, WIDTH)

        def force(x: Tensor) -> Any:
            energy = wrap(lambda given: model(given).tanh().pow(2))(x).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
            return slope.sin() * energy

        return model, lambda x: wrap(force)(x).sum()

    assert_same(build)


def test_compiled_functions_run_as_plain() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    x = torch.randn(4, WIDTH)
    expected = torch.autograd.grad(model(x).tanh().sum(), model.weight)[0]
    run = torch.compile(lambda given: autockpt.recompute(lambda y: model(y).tanh())(given).sum(), backend="eager")
    assert torch.equal(torch.autograd.grad(run(x), model.weight)[0], expected)


def test_compiled_code_may_make_what_recomputes() -> None:
    model, x = nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH)
    expected = torch.autograd.grad(model(x).tanh().sum(), model.weight)[0]
    run = torch.compile(lambda given: autockpt.recompute(model)(given).tanh().sum(), backend="eager", fullgraph=True)
    assert torch.equal(torch.autograd.grad(run(x), model.weight)[0], expected)


def test_saved_tensor_hooks_of_the_users_decide_where_the_arguments_wait() -> None:
    def build(wrap: Wrap) -> Any:
        model = net()

        def loss(x: Tensor) -> Any:
            with torch.autograd.graph.save_on_cpu():
                return wrap(model)(x * 2).square().mean()

        return model, loss

    assert_same(build)


# --- what stands ---


def test_after_forward_only_arguments_and_results_stand() -> None:
    """An activation of the function counts to none of the tensors that are held, whether by autograd or by a frame."""
    layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x = torch.randn(1024, 64, requires_grad=True)
    held, loss = saved_bytes(lambda: autockpt.recompute(layers)(x).sum())
    assert held == x.nbytes
    least = autockpt.measure(lambda: held_after(autockpt.recompute(layers), x)).end_bytes
    most = autockpt.measure(lambda: held_after(layers, x)).end_bytes
    assert most - least == 3 * x.nbytes  # the last result stands in both
    loss.backward()


KEPT: list[Tensor] = []


def held_after(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Leave a forward's graph alive."""
    KEPT[:] = [function(x)]


def test_frames_go() -> None:
    model = nn.Sequential(Mixer(autockpt.recompute), Mixer(autockpt.recompute, "lambda"))

    def loop() -> None:
        h = torch.ones(8, WIDTH, requires_grad=True)
        for _ in range(3):
            h = autockpt.recompute(lambda x: model(x) + h)(h)  # noqa: B023
        h.sum().backward()

    assert_frames_go(loop)
    assert_frames_go(lambda: autockpt.recompute(model)(torch.ones(8, WIDTH)))  # no backward follows


class Small(nn.Module):
    """A model whose blocks recompute a part of themselves."""

    def __init__(self, wrap: Wrap) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(WIDTH, 64), nn.Linear(64, 4)
        self.blocks = nn.ModuleList(Part(wrap) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


class Part(nn.Module):
    def __init__(self, wrap: Wrap) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.mix = (
            nn.LayerNorm(64),
            nn.Linear(64, 256),
            nn.Linear(256, 64),
            nn.Linear(64, 64),
        )
        self.wrap = wrap

    def mlp(self, x: Tensor) -> Any:
        return nn.functional.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))), 0.1)

    def forward(self, x: Tensor) -> Any:
        x = x + self.mix(x).tanh()
        return x + self.wrap(self.mlp)(x)


@pytest.mark.parametrize("budget", ["100%", "lowest"])
def test_apply_counts_it(budget: str) -> None:
    """The predicted peak is the measured one, with segments around functions, and without any."""
    x = torch.randn(256, WIDTH)
    model = Small(autockpt.recompute)
    autockpt.apply(model, budget)

    def step(model: nn.Module, losses: list[float]) -> None:
        model.zero_grad(set_to_none=False)
        loss = model(x)
        loss.backward()
        losses.append(loss.item())

    found: list[float] = []
    torch.manual_seed(1)
    for _ in range(5):
        step(model, found)
    plan: Any = autockpt.plan_of(model)
    measured = autockpt.measure(lambda: step(model, found)).peak_bytes
    assert measured == pytest.approx(plan.peak_bytes, rel=0.001)
    left, expected, twin = Outcome(left_by(model)), list[float](), Small(plain)
    torch.manual_seed(1)
    for _ in range(6):
        step(twin, expected)
    assert found == expected and Outcome(left_by(twin)).differences(left) == []
    assert bool(plan.segments) == (budget == "lowest")
    assert plan.own_replays.startswith(
        "the model recomputes Part.mlp itself, with autockpt.recompute in the forward of"
    )


def test_a_pickle_of_a_model_that_recomputes_a_part_holds_the_plain_model() -> None:
    """It could be written, and not be read: the file named a private function at the part."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    model.__dict__["again"] = autockpt.recompute(model[0])
    found = pickle.loads(pickle.dumps(model))
    assert torch.equal(found.again(torch.ones(2, WIDTH)), model(torch.ones(2, WIDTH)))
    assert found.again.__self__ is found[0]


def test_what_changes_is_named_by_the_class_of_its_module(caplog: pytest.LogCaptureFixture) -> None:
    """The name began with a colon, and ended in a number."""

    class Remembers(nn.Linear):
        def __init__(self) -> None:
            super().__init__(WIDTH, WIDTH)
            self.history: list[int] = []

        def forward(self, x: Tensor) -> Tensor:
            self.history.append(len(self.history))
            return super().forward(x).tanh()

    again = autockpt.recompute(Remembers())
    again(torch.ones(2, WIDTH)).sum().backward()
    assert "since it changes the module Remembers.history" in caplog.text


class Scaled:
    """An object of the loop's, whose number the loop changes."""

    factor = 1.0  # of the class, which the loop changes too

    def __init__(self) -> None:
        self.scale, self.config = 1.0, {"scale": 1.0}
        self.weight = torch.ones(WIDTH, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = (x * self.weight * self.scale * self.config["scale"] * self.factor).tanh()
        return out

    run = __call__


WAYS_TO_AN_OBJECT: dict[str, Callable[[Scaled, Wrap], Any]] = {
    "object": lambda each, wrap: wrap(each),
    "method": lambda each, wrap: wrap(each.run),
    "closure": lambda each, wrap: wrap(lambda x: each.run(x)),
    "partial": lambda each, wrap: wrap(functools.partial(Scaled.run, each)),
    "module": lambda each, wrap: wrap(Holding(each)),
}


class Holding(nn.Module):
    """A module with an object at an attribute."""

    def __init__(self, held: Scaled) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return self.held.run(x)


@pytest.mark.parametrize("way", WAYS_TO_AN_OBJECT)
def test_numbers_at_objects_are_those_of_forward(way: str) -> None:
    """Also those that begin to change between forward and backward in a later step, which nothing compares."""

    def trained(wrap: Wrap) -> tuple[list[Tensor | None], float, dict[str, float], float]:
        each, found = Scaled(), list[Tensor | None]()
        run = WAYS_TO_AN_OBJECT[way](each, wrap)
        for step in range(6):
            loss = run(torch.ones(WIDTH)).sum()
            if step >= 3:
                each.scale += 1
                each.config["scale"] += 0.5
                Scaled.factor += 0.25
            loss.backward()
            found.append(each.weight.grad)
            each.weight.grad = None
        factor, Scaled.factor = Scaled.factor, 1.0
        return found, each.scale, each.config, factor

    (plainly, *left), (again, *left_again) = trained(plain), trained(autockpt.recompute)
    assert left == left_again
    assert all(torch.equal(one, two) for one, two in zip(plainly, again, strict=True) if one is not None is not two)


@pytest.mark.parametrize(
    "make",
    [
        lambda cools, cool: functools.partial(lambda x, cools: x * (cool["by"][0] if cools else 1.0), cools=cools),
        lambda cools, cool: lambda x: x * (cool["by"][0] if cools else 1.0),
    ],
    ids=["partial", "closure"],
)
def test_each_function_of_a_factory_has_its_first_call_compared(make: Any) -> None:
    """One that repeats itself says nothing of its sisters."""
    cool, weight = {"by": [1.0]}, torch.ones(WIDTH, requires_grad=True)

    def gradients(function: Any) -> list[Tensor | None]:
        found = []
        for _ in range(4):
            cool["by"][0] = 1.0
            loss = (function(weight).tanh()).sum()
            cool["by"][0] = 5.0
            loss.backward()
            found.append(weight.grad)
            weight.grad = None
        return found

    gradients(autockpt.recompute(make(False, cool)))
    plainly, again = gradients(make(True, cool)), gradients(autockpt.recompute(make(True, cool)))
    assert all(torch.equal(one, two) for one, two in zip(plainly, again, strict=True) if one is not None is not two)
