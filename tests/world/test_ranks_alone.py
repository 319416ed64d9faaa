"""One rank of a world that is not there: what it holds, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import autockpt
from autockpt import NotApplicable, ProfilingError
from tests.doors import Batches, blocks_of, held_by, torch_private, world_of
from tests.toys.chains import Residual

WIDTH = 64
Build = Callable[..., tuple[nn.Module, torch.Tensor]]


class Stack(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Residual(WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return torch.sin(self.head(x))  # no view, of which FSDP2 warns


def plain(rows: int = 32, device: str = "cpu") -> tuple[nn.Module, torch.Tensor]:
    with torch.device(device):
        return Stack(), torch.ones(rows, WIDTH)


def sharded(rows: int = 32, device: str = "cpu", **given: Any) -> tuple[nn.Module, torch.Tensor]:
    model, batch = plain(rows, device)
    layers: Any = model.layers
    for layer in layers:
        fully_shard(layer, **given)
    fully_shard(model, **given)
    return model, batch


@pytest.fixture(autouse=True)
def no_group_stays() -> Iterator[None]:
    yield
    assert not distributed.is_initialized()


WHOLE = sum(each.nbytes for each in Stack().parameters())


def test_a_rank_holds_its_shards_and_what_is_whole_for_a_while() -> None:
    profile = autockpt.profile(sharded, world_size=8, optimizer="adamw")
    assert profile.world is not None and (profile.world.ranks, profile.world.way) == (8, "fsdp2")
    held = held_by(profile, profile.world)
    assert (held.parameter_bytes, held.gradient_bytes) == (WHOLE // 8, WHOLE // 8)
    block = sum(each.nbytes for each in Residual(WIDTH).parameters())
    assert block < held.gathered_bytes < WHOLE and block < held.reduced_bytes < WHOLE
    assert held.bucket_bytes == 0
    assert profile.mode == "fake" and any("collectives take no time" in note for note in profile.notes)


def test_a_model_without_memory_is_the_same() -> None:
    here, nowhere = (autockpt.profile(lambda: sharded(device=each), world_size=4) for each in ("cpu", "meta"))  # noqa: B023
    assert (nowhere.static, nowhere.tensors) == (here.static, here.tensors)


def test_replicas_hold_all_and_their_buckets() -> None:
    def build(*, views: bool) -> tuple[nn.Module, torch.Tensor]:
        model, batch = plain()
        return DistributedDataParallel(model, gradient_as_bucket_view=views), batch

    alone = autockpt.profile(*plain(), mode="fake")
    apart = autockpt.profile(lambda: build(views=False), world_size=8)
    inside = autockpt.profile(lambda: build(views=True), world_size=8)
    assert apart.plain_peak_bytes == alone.plain_peak_bytes + WHOLE
    assert apart.world is not None and apart.world.bucket_bytes == apart.static.other_bytes == WHOLE
    assert (inside.static.gradient_bytes, inside.static.other_bytes) == (WHOLE, 0)
    assert inside.world is not None and held_by(inside, inside.world).gradient_bytes == 0


def test_a_model_that_shards_nothing_is_whole_unless_it_is_to_be_sharded() -> None:
    whole = autockpt.profile(plain, world_size=8)
    assert whole.world is not None and whole.world.way == "whole"
    assert whole.static == autockpt.profile(*plain(), mode="fake").static
    by_us, by_them = autockpt.profile(plain, world_size=8, shard="fsdp2"), autockpt.profile(sharded, world_size=8)
    assert (by_us.static, by_us.tensors) == (by_them.static, by_them.tensors)
    assert autockpt.profile(sharded, world_size=8, shard="fsdp2").static == by_them.static


def test_an_optimizer_trains_the_shards_that_we_make() -> None:
    def build() -> tuple[nn.Module, torch.Tensor, None, torch.optim.Optimizer]:
        model, batch = plain()
        return model, batch, None, torch.optim.AdamW(model.parameters())

    profile = autockpt.profile(build, world_size=8, shard="fsdp2")
    assert (
        profile.static.optimizer_bytes
        == autockpt.profile(sharded, world_size=8, optimizer="adamw").static.optimizer_bytes
    )


def test_replicas_of_shards_hold_what_their_mesh_says() -> None:
    def build() -> tuple[nn.Module, torch.Tensor]:
        return sharded(mesh=init_device_mesh("cpu", (2, 4), mesh_dim_names=("copies", "shards")))

    assert autockpt.profile(build, world_size=8).static.parameter_bytes == WHOLE // 4


def test_what_is_whole_for_a_while_does_not_grow_with_the_batch() -> None:
    small, large = (autockpt.profile(lambda: sharded(rows), world_size=4) for rows in (64, 256))  # noqa: B023
    assert Batches.of(small, 64).at(256).plain_peak_bytes == pytest.approx(large.plain_peak_bytes, rel=0.01)


def test_the_world_comes_back_from_a_file(tmp_path: Any) -> None:
    profile = autockpt.profile(sharded, world_size=2)
    profile.save(tmp_path / "rank.json")
    assert autockpt.Profile.load(tmp_path / "rank.json") == profile


def test_a_build_finds_itself_among_ranks_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    seen: list[object] = []

    def build() -> tuple[nn.Module, torch.Tensor]:
        seen.extend(
            [distributed.get_world_size(), distributed.get_rank(), os.environ["LOCAL_RANK"], os.environ["RANK"]]
        )
        return plain()

    autockpt.profile(build, world_size=3)
    assert seen == [3, 0, "0", "0"]
    assert os.environ["RANK"] == "7" and "LOCAL_RANK" not in os.environ


def test_a_build_that_fails_says_why_and_leaves_no_group() -> None:
    def build() -> None:
        distributed.init_process_group("gloo")

    with pytest.raises(ProfilingError, match=r"build raised ValueError .*initialize the default process group twice"):
        autockpt.profile(build, world_size=2)


def test_a_build_that_leaves_its_group_is_told_so() -> None:
    """It was torch's ValueError, of a default process group that has not been initialized."""

    def build() -> Any:
        made = plain()
        distributed.destroy_process_group()
        return made

    with pytest.raises(ProfilingError, match="has left the process group"):
        autockpt.profile(build, world_size=2)


@pytest.mark.parametrize("ranks", [0, -1, True, 2.0, "8"])
def test_no_number_of_ranks(ranks: Any) -> None:
    with pytest.raises(ProfilingError, match="a whole number of ranks, 1 or more"):
        autockpt.profile(plain, world_size=ranks)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "measured"}, "the other ranks are not there"),
        ({"shard": "fsdp3"}, "unknown shard 'fsdp3'; there is fsdp2"),
        ({"inputs": torch.ones(2, WIDTH)}, "and no batch"),
        ({"model": Stack()}, "give a function that returns"),
        ({"model": dict}, "build must return"),
    ],
)
def test_what_goes_not_with_ranks(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ProfilingError, match=words):
        autockpt.profile(**{"model": plain, "world_size": 2, **given})


def test_what_goes_only_with_ranks() -> None:
    with pytest.raises(ProfilingError, match="goes with world_size="):
        autockpt.profile(*plain(), shard="fsdp2")
    with pytest.raises(TypeError, match="needs a batch"):
        autockpt.profile(plain)


def test_a_group_that_is_there_is_not_replaced() -> None:
    store: Any = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(NotApplicable, match=r"rank 0 of a process group of 1 \(gloo\), and planning for 8 ranks"):
            autockpt.profile(plain, world_size=8)
        assert distributed.is_initialized()
    finally:
        distributed.destroy_process_group()


def test_a_fake_group_of_the_callers_stays() -> None:
    torch_private.open_fake_group(4)
    try:
        assert autockpt.profile(sharded, world_size=4).static.parameter_bytes == WHOLE // 4
        with pytest.raises(NotApplicable, match="a process group of 4"):
            autockpt.profile(sharded, world_size=8)
        assert distributed.is_initialized()
    finally:
        distributed.destroy_process_group()


def in_parallel() -> tuple[nn.Module, torch.Tensor]:
    model, batch = plain()
    parallelize_module(
        model,
        init_device_mesh("cpu", (distributed.get_world_size(),)),
        {"first": ColwiseParallel(output_layouts=Replicate())},
    )
    return model, batch


def in_both_ways() -> tuple[nn.Module, torch.Tensor]:
    model, batch = plain()
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("shards", "layers"))
    parallelize_module(model, mesh["layers"], {"first": ColwiseParallel(output_layouts=Replicate())})
    fully_shard(model, mesh=mesh["shards"])
    return model, batch


def wrapped_inside() -> tuple[nn.Module, torch.Tensor]:
    model, batch = plain()
    model.first = DistributedDataParallel(model.first)
    return model, batch


@pytest.mark.parametrize(("build", "way"), [(in_parallel, "dtensor"), (in_both_ways, "fsdp2")])
def test_a_rank_holds_its_part_of_layers(build: Build, way: str) -> None:
    profile = autockpt.profile(build, world_size=2)
    assert profile.world is not None and profile.world.way == way
    assert WHOLE - profile.static.parameter_bytes == 4 * (WIDTH * WIDTH + WIDTH) // 2
    assert autockpt.profile(build, world_size=2, shard="fsdp2").static == profile.static


def test_a_wrapped_part_takes_the_other_ranks_and_is_named() -> None:
    with pytest.raises(NotApplicable, match="first is DistributedDataParallel inside the model"):
        autockpt.profile(wrapped_inside, world_size=2)


def test_blocks_are_the_outermost_siblings_of_one_class() -> None:
    model = nn.ModuleDict(
        {
            "words": nn.Linear(4, 4),
            "left": nn.ModuleList(Stack(2) for _ in range(2)),
            "right": Stack(3),
            "ends": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        }
    )
    left: Any = model["left"]
    right: Any = model["right"]
    assert blocks_of(model) == [*left, *right.layers]
    assert blocks_of(nn.Linear(4, 4)) == []


def test_a_world_is_left_after_an_error() -> None:
    with pytest.raises(KeyError), world_of(2):
        raise KeyError


def test_shards_on_the_host_are_refused_by_name() -> None:
    with world_of(2):
        model, _ = sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))
        with pytest.raises(
            NotApplicable, match=r"FSDPStack is a unit of FSDP2 whose shards lie on the host \(CPUOffloadPol"
        ):
            autockpt.apply(model, "8GB")
    with pytest.raises(NotApplicable, match="CPUOffloadPolicy"):
        autockpt.profile(lambda: sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)), world_size=2)
