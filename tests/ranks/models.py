"""A small transformer, in the ways in which two ranks share it; and loops that train it, told by what they leave."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from .quiet import add_up, group_of_all, mesh_of_four, octets

WORDS = 128


class Block(nn.Module):
    """Attention and a feed-forward layer, with dropout."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        parts = self.qkv(self.first(hidden))
        rows, length, _ = parts.shape
        query, key, value = parts.view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        hidden = hidden + functional.dropout(mixed, self.dropout, self.training)
        wide = functional.gelu(self.up(self.second(hidden)))
        return hidden + functional.dropout(self.down(wide), self.dropout, self.training)


class Writer(nn.Module):
    """A small language model; with statistics that forward moves, if there is a norm."""

    def __init__(self, width: int = 64, depth: int = 4, dropout: float = 0.1, *, norm: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.statistics = nn.BatchNorm1d(width) if norm else None
        self.blocks = nn.ModuleList(Block(width, 4, dropout) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        if self.statistics is not None:
            hidden = self.statistics(hidden.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


def writer(**given: Any) -> Writer:
    torch.manual_seed(0)
    return Writer(**given)


def tokens(rank: int, step: int, rows: int = 8, length: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, WORDS, (rows, length), generator=generator)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch)
    return functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), batch[:, 1:].reshape(-1))


class Quiet:
    """Collectives of a unit, by gloo, over memory of which torch's allocator knows nothing.

    gloo's own threads let go of what they have copied at some moment, and no profiler sees that. Where bytes are
    compared there must be none; so it is on a GPU, where collectives take nothing from the allocator.

    Args:
        log: is told of each.
    """

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class Gathers(Quiet):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> None:
        self._log.append(f"gather {output_tensor.numel()}")
        rank, size = distributed.get_rank(group), input_tensor.nbytes
        here = numpy.zeros(output_tensor.nbytes, numpy.uint8)
        here[rank * size : (rank + 1) * size] = octets(input_tensor)
        add_up(here, group)
        octets(output_tensor)[:] = here


class Scatters(Quiet):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        self._log.append(f"scatter {input_tensor.numel()}")
        rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
        assert input_tensor.dtype is torch.float32 and op == distributed.ReduceOp.AVG
        every = numpy.zeros((ranks, input_tensor.numel()), numpy.float32)
        every[rank] = input_tensor.numpy()
        add_up(every.view(numpy.uint8), group)
        mean = numpy.array_split(every, ranks, axis=1)[rank].sum(0) / numpy.float32(ranks)
        octets(output_tensor)[:] = mean.view(numpy.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A way in which ranks share a model.

    Attributes:
        by: ``ddp``, or ``fsdp``, whose root is a unit too; ``tp``, each layer of a block by its columns or rows, or
            ``sp``, the same with sequences shared in between; ``fsdp over tp`` on four ranks.
        units: which modules of FSDP's are, beside the root: its ``blocks``; none, ``root``; or blocks and a ``grouped``
            end, ends that are ``tied``, a ``frozen`` block; or blocks that two ranks have as copies, ``hybrid``.
        quiet: whether collectives of FSDP take nothing from torch's allocator.
        bf16: whether FSDP computes in bfloat16.
        reshard: given to `fully_shard` as `reshard_after_forward`.
        views: whether gradients lie in the buckets of DistributedDataParallel.
        seconds: after which collectives that are not quiet give up; None for as long as the process group waits.
    """

    by: str
    units: str = "blocks"
    quiet: bool = True
    bf16: bool = False
    reshard: bool | None = None
    views: bool = False
    seconds: float | None = None

    def wrap(self, model: Writer, log: list[str]) -> nn.Module:
        """Share a model; collectives of FSDP that are quiet are logged."""
        if self.seconds is not None:
            return self._briefly(model, log)
        if self.by in ("tp", "sp"):
            mesh = DeviceMesh.from_group(group_of_all(log, quiet=self.quiet), "cpu")
            return in_parallel(model, mesh, sequences=self.by == "sp")
        if self.by == "fsdp over tp":
            ways = ("shards", "layers")
            both = mesh_of_four(log) if self.quiet else init_device_mesh("cpu", (2, 2), mesh_dim_names=ways)
            return self.in_units(in_parallel(model, both["layers"], sequences=False), both["shards"], log)
        if self.by == "ddp":
            group = group_of_all(log, quiet=True) if self.quiet else None
            return DistributedDataParallel(model, gradient_as_bucket_view=self.views, process_group=group)
        shape, names = ((2, 1), ("copies", "shards")) if self.units == "hybrid" else ((2,), ("shards",))
        return self.in_units(model, init_device_mesh("cpu", shape, mesh_dim_names=names), log)

    def _briefly(self, model: Writer, log: list[str]) -> nn.Module:
        assert self.seconds is not None and not self.quiet
        group = distributed.new_group(timeout=datetime.timedelta(seconds=self.seconds))
        if self.by == "ddp":
            return DistributedDataParallel(model, process_group=group)
        mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=(f"briefly {group.group_name}",))
        if self.by == "fsdp":
            return self.in_units(model, mesh, log)
        return in_parallel(model, mesh, sequences=self.by == "sp")

    def in_units(self, model: Any, mesh: DeviceMesh, log: list[str]) -> nn.Module:
        """Shard a model that has `blocks`, over the ranks of a mesh."""
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self.bf16 else MixedPrecisionPolicy()
        units: list[Any] = [] if self.units == "root" else list(model.blocks)
        if self.units == "tied":
            model.head.weight = model.words.weight
        ends = {"grouped": ("norm", "head"), "tied": ("words", "head")}.get(self.units)
        units += [[getattr(model, each) for each in ends]] if ends else []
        if self.units == "frozen":
            model.blocks[0].requires_grad_(False)
        for unit in (*units, model):
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=self.reshard)
            first: Any = unit[0] if isinstance(unit, list) else unit
            if self.quiet:
                first.set_custom_all_gather(Gathers(log))
                first.set_custom_reduce_scatter(Scatters(log))
        sharded: nn.Module = model
        return sharded


def in_parallel(model: Writer, mesh: DeviceMesh, *, sequences: bool) -> Writer:
    """Have each rank compute a part of every layer."""
    along = Shard(1) if sequences else Replicate()
    for block in model.blocks:
        ways: dict[str, ParallelStyle] = {
            "qkv": ColwiseParallel(input_layouts=along),
            "out": RowwiseParallel(output_layouts=along),
            "up": ColwiseParallel(input_layouts=along),
            "down": RowwiseParallel(output_layouts=along),
        }
        ways |= {"first": SequenceParallel(), "second": SequenceParallel()} if sequences else {}
        parallelize_module(block, mesh, ways)
    if sequences:
        ends: dict[str, ParallelStyle] = {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=along),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=along, output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, ends)
    return model


def standing_bytes(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[Tensor]) -> int:
    """Bytes that stand as a step begins: the model's, of shards those that are here, its optimizer's, and the batch.

    And the buckets of DistributedDataParallel, which no instrument sees.
    """
    parameters = list(model.parameters())
    state = [each for values in optimizer.state.values() for each in values.values()]
    gradients = [each.grad for each in parameters if each.grad is not None]
    here = [
        each.to_local() if hasattr(each, "to_local") else each
        for each in (*parameters, *model.buffers(), *state, *gradients, *batch)
    ]
    sizes: dict[int, int] = {each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in here}
    apart = isinstance(model, DistributedDataParallel) and not (model.gradient_as_bucket_view and gradients)
    bucket_bytes = sum(each.nbytes for each in parameters) if apart else 0
    return sum(sizes.values()) + bucket_bytes


def bits(tensor: Tensor | None) -> str:
    """Tell a tensor's bits, of a shard those that are here, by a text; takes nothing from torch's allocator."""
    if tensor is None:
        return ""
    here: Any = tensor.detach()
    here = here.to_local() if hasattr(here, "to_local") else here
    return hashlib.sha256(
        here.contiguous().view(torch.uint8).numpy().tobytes() if here.dim() else str(here.item()).encode()
    ).hexdigest()[:16]


def told(tensors: Mapping[str, Tensor | None]) -> dict[str, str]:
    """Tell tensors by name, without the names of wrappers."""
    plain = {name.replace("_checkpoint_wrapped_module.", ""): each for name, each in tensors.items()}
    return {name.removeprefix("module."): bits(each) for name, each in plain.items()}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Tensor], seed: int) -> dict[str, str]:
    """Train on some batches, with one step of the optimizer; tell the losses and the gradients."""
    torch.manual_seed(seed)
    optimizer.zero_grad()
    found: dict[str, Tensor | None] = {}
    said: dict[str, str] = {}
    for number, batch in enumerate(batches):
        if len(batches) > 1:
            _sync(model, on=number + 1 == len(batches))
        loss = loss_of(model, batch)
        loss.backward()
        said[f"loss {number}"] = bits(loss)
        del loss
    found.update((name, each.grad) for name, each in model.named_parameters())
    said.update(told(found))
    del found
    optimizer.step()
    return said


def _sync(model: nn.Module, *, on: bool) -> None:
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = on
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(on)  # type: ignore[operator]


def trained(model: nn.Module, step_once: Callable[[int], dict[str, str]], count: int) -> list[dict[str, str]]:
    """Train for some steps; tell each, and all that the model has at the end."""
    found = [step_once(number) for number in range(count)]
    state: dict[str, Tensor | None] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return [*found, told(state)]


@contextmanager
def collectives(log: list[str]) -> Iterator[None]:
    """Log the collectives that FSDP2's units run by themselves inside the block, in order."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as own

    before = {kind: kind.__call__ for kind in (own.DefaultAllGather, own.DefaultReduceScatter)}

    def logged(kind: Any, plain: Any) -> Any:
        def call(self: Any, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            log.append(f"{kind.__name__} {output_tensor.numel()} {input_tensor.numel()}")
            return plain(self, output_tensor, input_tensor, *args, **kwargs)

        return call

    for kind, plain in before.items():
        kind.__call__ = logged(kind, plain)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, plain in before.items():
            kind.__call__ = plain  # type: ignore[method-assign]
