"""Ranks that are given plans by hand that do not go together, and models whose groups do not; see `bad`."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import autockpt

from .bad import budget_for, loop, told_of
from .models import Shared, in_parallel, writer

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
