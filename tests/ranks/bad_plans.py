"""Ranks that are given plans by hand that do not go together, and models whose groups do not; see `bad`."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import autockpt
from tests.doors import rank_group

from .bad import budget_for, loop, told_of
from .models import Shared, bits, in_parallel, loss_of, tokens, writer
from .unlike import Halves

PLANS: dict[str, list[list[str]]] = {
    "blocks": [["blocks.0"], ["blocks.1"]],
    "other blocks": [["blocks.2"], ["blocks.3"]],
    "two in one": [["blocks.0", "blocks.1"]],
    "other two": [["blocks.1", "blocks.2"]],
    "layers": [["layers.0"]],
}


def given(rank: int, *, shared: Shared, plans: tuple[str | None, str | None]) -> dict[str, Any]:
    """Give each rank a plan by hand, or a budget; compare with the same steps without."""

    def run(asked: dict[str, Any] | None) -> tuple[list[Any], dict[str, Any], bool]:
        model, said = writer(), list[Any]()
        wrapped = shared.wrap(model, [])
        inner = model if shared.by == "ddp" else wrapped

        def train() -> None:
            if asked is not None:
                autockpt.apply(inner, **asked)
            loop(rank, shared, wrapped, 4, said)

        found = told_of(train)
        return said, found, asked is not None and autockpt.plan_of(inner) is not None

    plan = plans[rank]
    plain = run(None)
    planned = run(budget_for(shared) if plan is None else {"plan": autockpt.Plan.of(PLANS[plan])})
    return {**planned[1], "same": plain[0] == planned[0], "steps": len(planned[0]), "planned": planned[2]}


def around_layers(rank: int) -> dict[str, Any]:
    """Wrap a model whose layers are shared in DistributedDataParallel, over the other dimension of its mesh."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "layers"))
    inner = in_parallel(writer(), mesh["layers"], sequences=False)
    wrapped = DistributedDataParallel(inner, device_mesh=mesh["copies"])
    found = told_of(lambda: autockpt.apply(wrapped, 8_000_000))
    shared, said = Shared(by="tp"), list[Any]()
    loop(rank, shared, wrapped, 2, said)
    return {**found, "steps": len(said)}


def crosswise(rank: int) -> dict[str, Any]:
    """Have four ranks share one half of a model by rows and the other by columns, in groups of two."""
    rows = [distributed.new_group(each) for each in ([0, 1], [2, 3])]
    columns = [distributed.new_group(each) for each in ([0, 2], [1, 3])]

    def run(budget: int | None) -> tuple[list[Any], dict[str, Any]]:
        model, said = Halves(), list[Any]()
        model.front = DistributedDataParallel(model.front, process_group=rows[rank // 2])  # type: ignore[assignment]
        model.back = DistributedDataParallel(model.back, process_group=columns[rank % 2])  # type: ignore[assignment]
        if budget is not None:
            autockpt.apply(model, budget)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def train() -> None:
            for number in range(2):
                torch.manual_seed(100 + number)
                optimizer.zero_grad()
                loss = loss_of(model, tokens(rank, number))
                loss.backward()
                said.append(bits(loss))
                optimizer.step()

        return said, told_of(train)

    with mock.patch.object(rank_group, "PATIENCE_SECONDS", 2.0):
        plain, planned = run(None), run(8_000_000)
    return {**planned[1], "plain": plain[1], "steps": len(planned[0])}
