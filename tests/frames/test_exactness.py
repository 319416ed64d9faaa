"""A planned step equals the plain one bit for bit: loss, gradients, buffers, generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import spectral_norm

from autockpt import Plan, Segment
from tests.frames.comparing import assert_same
from tests.frames.models import WIDTH, Containers, Tower, Twice, batch, cnn, images, mlp, summed
from tests.toys.chains import InTurn
from tests.toys.told import Told, around, casting, with_linear


@pytest.mark.parametrize(
    "plan",
    [["0", "3"], [["0", "1", "2", "3", "4", "5"], ["9", "10"]], [["1", "3", "5"]], [[str(i) for i in range(12)]]],
    ids=["single layers", "runs", "run with gaps", "everything"],
)
def test_layers_with_dropout(plan: Any) -> None:
    assert_same(mlp(), plan, summed)


@pytest.mark.parametrize("known", [False, True], ids=["buffers unknown", "buffers named"])
@pytest.mark.parametrize("calls", [["0"], ["0", "1"], ["1.0", "1.1", "1.2"]], ids=str)
def test_batch_norm_counts_once(calls: list[str], known: bool) -> None:
    names = tuple(name for name, _ in cnn().named_buffers() if name.startswith(tuple(calls)))
    segment = Segment(calls=tuple(f"{call}#0" for call in calls), buffers=names if known else None)
    assert_same(cnn(), Plan(segments=(segment,)), images)


@pytest.mark.parametrize("calls", [["0", "1"], ["0.0"]], ids=str)
def test_batch_norm_in_evaluation_mode(calls: list[str]) -> None:
    assert_same(cnn().eval(), [calls], images)


@pytest.mark.parametrize(
    "plan",
    [
        [f"blocks.{i}" for i in range(5)],
        [["blocks.0", "blocks.1", "blocks.2"], ["blocks.3", "blocks.4"]],
        [["blocks.0", "blocks.2", "blocks.4"]],
        [["blocks.1.norm", "blocks.1.first"], "blocks.3.second"],
    ],
    ids=["blocks", "runs", "run with gaps", "parts"],
)
@pytest.mark.parametrize("early", [False, True], ids=["whole", "early exit"])
def test_tuples_keywords_glue_and_early_exits(plan: Any, early: bool) -> None:
    assert_same(Tower(early=early), plan, lambda model: summed(model))


@pytest.mark.parametrize(
    "plan",
    [["block#0"], ["block#1"], [["block#0", "block#1"]], ["block.0#2"], ["block.1#0", "block.1#1", "block.0#1"]],
    ids=str,
)
def test_a_module_used_twice(plan: Any) -> None:
    assert_same(Twice(), plan, summed)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_containers_passed_and_changed_later(length: int) -> None:
    stages = [f"stages.{i}" for i in range(7)]
    assert_same(Containers(), [stages[i : i + length] for i in range(0, 7, length)], summed)


def test_autocast_is_put_back() -> None:
    def run(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss: Tensor = model(batch(4, WIDTH)).float().square().sum()
        return loss

    assert_same(Tower(), [["blocks.0", "blocks.1"], "blocks.3"], run)


def test_autocast_around_backward_only() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(casting(mlp(), enabled=False), ["inner"], summed)


def test_attention_kernels_chosen_around_forward_only() -> None:
    def attends(own: Told, x: Tensor) -> Tensor:
        query, key, value = own.project(x).view(1, 4, 2, 3 * WIDTH // 2).transpose(1, 2).chunk(3, -1)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value).reshape(4, WIDTH)

    def run(model: nn.Module) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return summed(model)

    torch.manual_seed(0)
    model = nn.Sequential(*(Told(attends, project=nn.Linear(WIDTH, 3 * WIDTH)) for _ in range(2)))
    assert_same(model, [["0", "1"]], run)


def test_evaluation_mode_between_forward_and_backward() -> None:
    def run(model: nn.Module) -> Tensor:
        loss = summed(model.train())
        model.eval()
        return loss

    assert_same(Tower(), [["blocks.0", "blocks.1"], "blocks.3"], run)


def test_a_buffer_that_forward_both_reads_and_changes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()), nn.Linear(WIDTH, 1))
    assert_same(model, ["0"], summed)


def averages(own: Told, x: Tensor) -> Tensor:
    """Replaces its buffer instead of changing it."""
    own.average = own.average * 0.9 + x.detach().mean(0)
    return torch.tanh(own.linear(x) * own.average.exp())


def test_a_buffer_that_forward_replaces() -> None:
    torch.manual_seed(0)
    averaging = (with_linear(averages, average=torch.zeros(WIDTH)) for _ in range(2))
    assert_same(nn.Sequential(*averaging, nn.Linear(WIDTH, 1)), [["0", "1"]], summed)


def test_two_forwards_before_two_backwards() -> None:
    def run(model: nn.Module) -> Tensor:
        return images(model) + images(model)

    assert_same(cnn(), ["0", "1"], run)


def test_an_explicit_generator_passed_as_argument() -> None:
    def noisy(own: Told, x: Tensor) -> Any:
        generator = torch.Generator().manual_seed(3)
        x = own.noise(own.linear(x), generator)
        return x * torch.rand(1, generator=generator)

    noise = Told(lambda own, x, generator: x.exp() * torch.rand(x.shape, generator=generator))
    assert_same(with_linear(noisy, noise=noise), ["noise"], summed)


def test_calls_without_gradients_count_too() -> None:
    def target(block: nn.Module, x: Tensor) -> Any:
        """Runs its block first as a target, without gradients."""
        with torch.no_grad():
            wanted = block(x)
        return block(x) - wanted

    torch.manual_seed(0)
    model = around(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh()), target)
    assert_same(model, ["inner#0"], summed, replays=False)
    assert_same(model, ["inner#1"], summed)
    assert_same(model, [["inner#0", "inner#1"]], summed)


def test_members_that_return_what_they_were_given() -> None:
    assert_same(mlp().eval(), [[str(i) for i in range(12)]], summed)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, WIDTH), nn.Identity(), nn.Flatten(), nn.Tanh(), nn.Tanh())
    assert_same(model, [["0", "1", "2", "3", "4"]], summed)


def test_recurrent_layers() -> None:
    def recurs(own: Told, x: Tensor) -> Any:
        x = x.unsqueeze(1).repeat(1, 3, 1)
        x, _ = own.layers[0](x)
        x, state = own.layers[1](x)
        return x + state[0].unsqueeze(1)

    torch.manual_seed(0)
    layers = nn.ModuleList(nn.GRU(WIDTH, WIDTH, 2, dropout=0.2, batch_first=True) for _ in range(2))
    assert_same(Told(recurs, layers=layers), [["layers.0", "layers.1"]], summed)


def test_inference_tensors_as_arguments() -> None:
    with torch.inference_mode():
        mask = torch.ones(4, WIDTH)

    masked = InTurn(Tower(2).blocks, lambda _, block, x: block(x + mask, mask=x)[0] + mask)
    assert_same(masked, [["blocks.0", "blocks.1"]], summed)


def test_where_nothing_wants_a_gradient_nothing_is_recorded() -> None:
    model = Tower()
    model.blocks.requires_grad_(False)
    assert_same(model, [["blocks.0", "blocks.1"]], summed, replays=False)


def test_frozen_parameters_and_frozen_input() -> None:
    model = Tower()
    for parameter in model.blocks[:3].parameters():
        parameter.requires_grad_(False)
    assert_same(model, [["blocks.0", "blocks.1"], ["blocks.2", "blocks.3"]], summed)


def test_parameters_frozen_between_forward_and_backward() -> None:
    def run(model: nn.Module) -> Tensor:
        loss = summed(model.requires_grad_(True))
        model.requires_grad_(False)
        return loss

    assert_same(Tower(), [["blocks.0", "blocks.1"], "blocks.3"], run)


def test_a_result_that_the_model_changes_in_place_between_two_calls_of_a_segment() -> None:
    """The call after it is given what it was changed to, as in forward."""
    parts = {"first": nn.Linear(WIDTH, WIDTH), "second": nn.Linear(WIDTH, WIDTH), "last": nn.Linear(WIDTH, 1)}
    model = Told(lambda own, x: own.last(own.second(own.first(x).mul_(3.0)).tanh()), **parts)
    assert_same(model, [["first", "second"]], summed)


@pytest.mark.parametrize("begin", [0, WIDTH])
def test_a_part_of_a_parameter_is_saved(begin: int) -> None:
    def act(own: Told, x: Tensor) -> Any:
        return x @ own.weight[begin : begin + WIDTH]

    torch.manual_seed(0)
    part = Told(act, weight=nn.Parameter(torch.randn(2 * WIDTH, WIDTH)))
    assert_same(nn.Sequential(nn.Linear(WIDTH, WIDTH), part, nn.Tanh(), nn.Linear(WIDTH, 1)), [["1", "2"]], summed)
