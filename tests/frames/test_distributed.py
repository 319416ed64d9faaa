"""Plans under data parallelism, in a world of one process."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from autockpt import NotApplicable, Plan, apply, measure
from tests.doors import Buckets, buckets_among, gradient_bytes, install, torch_private
from tests.frames.comparing import steps
from tests.frames.models import Tower, summed
from tests.twin import counting_replays

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")


@pytest.fixture(autouse=True)
def world(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("planned_first", [True, False], ids=["planned, then wrapped", "wrapped, then planned"])
def test_distributed_data_parallel_with_unused_parameters(planned_first: bool) -> None:
    model = Tower(early=True)
    plain = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=True)
    if planned_first:
        install(model, Plan.of([["blocks.0", "blocks.1"], "blocks.3"]))
    planned = DistributedDataParallel(model, find_unused_parameters=True)
    if not planned_first:
        install(planned, Plan.of([["module.blocks.0", "module.blocks.1"], "module.blocks.3"]))
    expected = steps(plain, summed, count=3)
    with counting_replays() as replays:
        assert expected.differences(steps(planned, summed, count=3)) == []
    assert len(replays) == 4


@pytest.mark.parametrize("policy", [None, MixedPrecisionPolicy(param_dtype=torch.bfloat16)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("planned_first", [True, False], ids=["planned, then sharded", "sharded, then planned"])
def test_fully_sharded_units_as_segments(planned_first: bool, policy: MixedPrecisionPolicy | None) -> None:
    """Runs over several sharded units wait for a later version: the earlier unit's parameters are away by then."""

    def sharded(plan: Plan | None) -> nn.Module:
        model = Tower()
        if plan is not None and planned_first:
            install(model, plan)
        mesh = init_device_mesh("cpu", (1,))
        for unit in (*model.blocks, model):
            if policy is None:
                fully_shard(unit, mesh=mesh)
            else:
                fully_shard(unit, mesh=mesh, mp_policy=policy)
        if plan is not None and not planned_first:
            install(model, plan)
        return model

    plain, planned = sharded(None), sharded(Plan.of(["blocks.0", "blocks.1", "blocks.3"]))
    found = []
    with counting_replays() as replays:
        for model in (plain, planned):
            torch.manual_seed(1)
            loss = summed(model)
            loss.backward()
            gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
            found.append([loss, *(gradient.full_tensor() for gradient in gradients if gradient is not None)])
    assert len(replays) == 3
    assert len(found[0]) > 1 and all(map(torch.equal, *found))


def test_a_segment_inside_a_unit_may_hold_functions_that_the_unit_calls() -> None:
    def losses_and_gradients(plan: Plan | None) -> list[Any]:
        model = Tower()
        for unit in (*model.blocks, model):
            fully_shard(unit, mesh=init_device_mesh("cpu", (1,)))
        if plan is not None:
            apply(model, plan=plan)
        torch.manual_seed(1)
        loss = summed(model)
        loss.backward()
        gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
        return [loss, *(gradient.full_tensor() for gradient in gradients if gradient is not None)]

    inside = ["blocks.1.norm#0", "blocks.1.first#0", "blocks.1#0/relu#0", "blocks.1.dropout#0"]
    with counting_replays() as replays:
        planned = losses_and_gradients(Plan.of([inside]))
    assert len(replays) == 1
    plain = losses_and_gradients(None)
    assert len(plain) > 1 and all(map(torch.equal, plain, planned))
    beside = losses_and_gradients(Plan.of([["blocks.1", "#0/tanh#0"]]))
    assert all(map(torch.equal, plain, beside))


def test_a_segment_around_units_is_refused() -> None:
    model = nn.Sequential(Tower())
    for unit in model[0].blocks:  # type: ignore[union-attr]
        fully_shard(unit, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(NotApplicable, match=r"covers \d units that are sharded"):
        apply(model, plan=Plan.of([["0"]]))


def test_what_is_asked_of_units_of_fsdp2_is_what_torch_has() -> None:
    """At rest and gathered; whole gradients that wait; what decides how much they hold; and nothing elsewhere."""
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert torch_private.unit_of(model[0]) is None
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    unit = torch_private.unit_of(model[0])
    assert torch_private.any_units() and torch_private.unit_ranks(unit) == {0}
    shards = [shard for shard, gathered in torch_private.parameters_of(unit) if gathered is None]
    assert len(shards) == 2 and all(map(torch_private.is_distributed, shards))
    assert not torch_private.is_distributed(model[1].weight)
    assert [list(each.shape) for each in torch_private.parts(shards)] == [[4, 4], [4]]
    model(torch.ones(2, 4)).sum().backward()
    (gathered, _) = [each for _, each in torch_private.parameters_of(unit)]
    assert gathered is not None and not gathered.untyped_storage().nbytes()
    assert torch_private.gather(unit) and not torch_private.gather(unit)
    before, version = gathered.detach().clone(), gathered._version
    torch_private.move(gathered)
    assert torch.equal(before, gathered) and gathered._version == version
    torch_private.let_go(unit)
    assert not gathered.untyped_storage().nbytes()
    assert torch_private.waiting_gradients(unit) == [] and torch_private.buffers_of(unit) == []
    before_switch = torch_private.unit_switches(unit)
    model[0].set_requires_gradient_sync(False)
    assert torch_private.unit_switches(unit) != before_switch
    model(torch.ones(2, 4)).sum().backward()
    assert [list(each.shape) for each in torch_private.waiting_gradients(unit)] == [[4, 4], [4]]
    assert not (torch_private.is_offloaded(unit) or torch_private.lies_on_several(unit))
    assert not torch_private.gathers_by_itself(unit)


def test_what_is_asked_of_a_process_group_is_what_torch_has() -> None:
    assert torch_private.process_group() and torch_private.own_rank() == 0
    wrapper = DistributedDataParallel(nn.Linear(2, 2))
    assert torch_private.ranks_in(wrapper.process_group) == [0]
    found = []
    for _ in range(2):
        found.append(torch_private.has_rebuilt_buckets(wrapper))
        wrapper(torch.ones(1, 2)).sum().backward()
    assert found == [False, False] and torch_private.has_rebuilt_buckets(wrapper)
    store = torch_private.default_store()
    store.set("word", b"said")
    assert store.get("word") == b"said" and store.timeout.total_seconds() > 0


def test_what_is_asked_of_tensors_on_several_ranks_is_what_torch_has() -> None:
    """Where their memory is, over which ranks they lie, and how one is made of this rank's part."""
    tensor = distribute_tensor(torch.arange(6.0).view(2, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
    part = torch_private.local(tensor)
    assert type(part) is torch.Tensor and part is torch_private.here(tensor)
    assert torch_private.storage_key(tensor) == torch_private.storage_key(part) != 0
    assert torch_private.mesh_ranks(tensor) == {0}
    again: Any = torch_private.like(tensor)(part.clone())
    assert again.placements == tensor.placements and torch.equal(again.full_tensor(), tensor.full_tensor())
    plain = torch.ones(2)
    assert torch_private.local(plain) is plain is torch_private.here(plain) is torch_private.like(plain)(plain)


def test_collectives_are_waited_for_as_they_begin_where_that_is_asked_for() -> None:
    """torch holds what nobody reads for good: a replay that ended before left a tensor behind in every step."""

    world: Any = distributed.group.WORLD

    def kind() -> str:
        brought = functional.all_reduce(torch.ones(2), "sum", world)
        name = type(brought).__name__
        assert torch.equal(torch_private.here(brought), torch.ones(2))
        return name

    assert kind() == "AsyncCollectiveTensor"
    assert not torch_private.wait_for_collectives(on=True)
    assert kind() == "Tensor"
    assert torch_private.wait_for_collectives(on=True) and torch_private.wait_for_collectives(on=False)
    assert kind() == "AsyncCollectiveTensor"


def test_buckets_are_found_where_something_else_is_allocated_after_them() -> None:
    """Eight bytes that stayed hid them: a rank now and then foretold two copies of all gradients too much."""
    model = DistributedDataParallel(nn.Linear(100, 100))
    model(torch.ones(2, 100)).sum().backward()
    buckets = Buckets(model)
    assert buckets.rebuilt_bytes == 0  # allocated anew only in the second step
    model(torch.ones(2, 100)).sum().backward()
    model(torch.ones(2, 100)).sum().backward()
    assert buckets.rebuilt_bytes == 40_400
    for after in ([], [(0, 8)], [(0, 400), (9, 8)]):
        assert buckets_among([*after, (1, 40_000), (2, 400), (3, 77)], 40_400) == {1, 2}
    assert buckets_among([(0, 50_000), (1, 40_000), (2, 50_000), (3, 400)], 40_400) == {1, 3}  # of two wrappers, say
    assert buckets_among([(0, 8), (1, 40_000)], 40_400) == buckets_among([(1, 8)], 0) == set()


def test_gradients_that_copies_of_a_unit_do_not_share_yet_are_counted() -> None:
    """Hybrid sharding with `set_requires_all_reduce(False)`: no parameter has them until the last backward."""
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))
    model: Any = fully_shard(nn.Linear(8, 8), mesh=mesh)
    for shares in (False, False, True):
        model.set_requires_all_reduce(shares)
        model(torch.ones(2, 8)).sum().backward()
        assert all((each.grad is not None) is shares for each in model.parameters())
        assert gradient_bytes(model) == (8 * 8 + 8) * 4


def test_what_is_asked_of_a_stage_is_what_torch_has() -> None:
    model = nn.Linear(4, 4)
    stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"))
    assert [each.submod for each in torch_private.stages()] == [model]
    assert torch_private.ranks_in(stage.group) == [0]
    assert torch_private.gradients_arriving(stage) == []
    schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).square().mean())
    asked = []
    model.register_forward_pre_hook(lambda *given: asked.append(torch_private.asks_for_shapes(stage)))
    for _ in range(2):  # a stage asks again in the first step after an evaluation
        schedule.step(torch.ones(4, 4), target=torch.ones(4, 4))
        assert asked[-2:] == [False, False] and asked[:-2] in ([], [True])
        schedule.eval(torch.ones(4, 4), target=torch.ones(4, 4))
        asked.clear()


@pytest.mark.parametrize("cap_mb", [0.001, 25], ids=["a bucket each", "one bucket"])
def test_gradients_in_buckets_that_were_taken_away_count_once(cap_mb: float) -> None:
    """After `zero_grad` `measure` saw the buckets through gradients that only C++ holds, and added them once more."""
    inner = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 64))
    model = DistributedDataParallel(inner, gradient_as_bucket_view=True, bucket_cap_mb=cap_mb)
    optimizer = torch.optim.AdamW(model.parameters())
    gc.collect()

    def step() -> None:
        model(torch.ones(4, 128)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = [measure(step).start_bytes for _ in range(3)]
    weights = sum(each.nbytes for each in model.parameters())
    state = sum(each.nbytes for values in optimizer.state.values() for each in values.values())
    assert found[1] - found[0] == found[2] - found[0] == state and state > 2 * weights
