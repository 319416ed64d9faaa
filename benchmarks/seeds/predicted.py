"""What is predicted: recorded profiles, and steps of fake tensors on the roofline of a device like the published."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import autockpt
from autockpt import Infeasible, Plan, Profile
from autockpt._data.hardware.devices import DEVICES
from autockpt._fit.fit import find_fits
from autockpt._fit.sized import Batches
from autockpt._fit.switches import switches
from benchmarks.gpu.models import encoder
from benchmarks.seeds.models import VGG, MegatronBlocks
from benchmarks.shipped.models import MODELS, Batch

__all__ = ["Figures", "adding", "lowest_with", "plain_of"]

Figures = dict[str, Any]
"""Shares and overheads are ratios, the rest has its unit in its name."""

GIB = 2**30
V100 = "v100"
UNLIMITED = 2**62


def recorded(build: Callable[[], tuple[nn.Module, Batch]], device: str, dtype: torch.dtype = torch.float32) -> Profile:
    """Record a step of fake tensors that finds gradients and adds to them, so that no gradient counts as activation."""
    with torch.device("meta"):
        model, batch = build()
    model.train().to(dtype)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    batch = {name: each.to(dtype) if each.is_floating_point() else each for name, each in batch.items()}
    return autockpt.profile(model, batch, mode="fake", device=device, loss=loss_of)


def loss_of(outputs: Any) -> torch.Tensor:
    """Return a model's own loss, or the mean of what it returns."""
    loss: torch.Tensor | None = getattr(outputs, "loss", None)
    return outputs.float().mean() if loss is None else loss


def plain_of(profile: Profile) -> Plan:
    """Return the plan that recomputes nothing."""
    return autockpt.solve(profile, UNLIMITED, solver="none")


def adding(profile: Profile, plan: Plan) -> float:
    """Return what a plan's step adds to what stands before it, as a share of what the plain step adds."""
    static_bytes = profile.static.total_bytes
    return (plan.peak_bytes - static_bytes) / (plan.plain_peak_bytes - static_bytes)


def within(profile: Profile, budget_bytes: int, **options: Any) -> Plan | None:
    """Return the plan for a budget; None if there is none."""
    try:
        return autockpt.solve(profile, budget_bytes, **options)
    except Infeasible:
        return None


def lowest_with(profile: Profile, solver: str) -> Plan:
    """Return the plan with the lowest peak that a solver which looks at no budget reaches."""
    try:
        return autockpt.solve(profile, 1, solver=solver)
    except Infeasible as error:
        plan: Plan | None = error.plan
        if plan is None:
            raise
        return plan


def at_share(profile: Profile, *shares: float, added: bool = False) -> Figures:
    """Ask for shares of the plain peak, or of what the plain step adds: overhead, and what no method is below."""
    plain, static_bytes = plain_of(profile), profile.static.total_bytes
    base_bytes = static_bytes if added else 0
    found: Figures = {"plain_peak_bytes": plain.peak_bytes, "static_bytes": static_bytes}
    for share in shares:
        plan = within(profile, base_bytes + int(share * (plain.peak_bytes - base_bytes)))
        found[f"overhead_at_{100 * share:.0f}"] = None if plan is None else plan.recompute_overhead
        found[f"bound_at_{100 * share:.0f}"] = None if plan is None else _bound(profile, plan)
    return found


def _bound(profile: Profile, plan: Plan) -> float:
    """Return the overhead that no method within a plan's budget is below, by the same roofline."""
    return (plan.lower_bound_seconds or 0.0) / profile.plain_seconds


def oneflow() -> Figures:
    """BERT large at their share of the plain peak, and under a switch for all blocks."""
    profile = Profile.load("bert-large")
    every = next(iter(switches(profile)))
    found = at_share(profile, 5978 / 9141)
    return {
        **found,
        "every_block_share": every.peak_bytes / found["plain_peak_bytes"],
        "every_block_overhead": every.recompute_seconds / profile.plain_seconds,
    }


def megatron() -> Figures:
    """Blocks of GPT-3's width with attention in plain operators: their switch, and ours at 30 % of what a step adds."""
    found: Figures = {}
    for case, layers, dropout in (("", 24, 0.1), ("_without_dropout", 24, 0.0), ("_of_four", 4, 0.1)):

        def build(layers: int = layers, dropout: float = dropout) -> tuple[nn.Module, Batch]:
            net = MegatronBlocks(layers=layers, width=12288, heads=96, length=2048, dropout=dropout)
            return net, {"x": torch.empty(1, 2048, 12288)}

        profile = recorded(build, "a100", torch.bfloat16)
        named = {switch.name: switch for switch in switches(profile)}
        plain, static_bytes = plain_of(profile), profile.static.total_bytes
        added_bytes = plain.peak_bytes - static_bytes
        for key, name in (("core", "attention core"), ("every_block", "every block")):
            found[f"{key}_share{case}"] = (named[name].peak_bytes - static_bytes) / added_bytes
            found[f"{key}_overhead{case}"] = named[name].recompute_seconds / profile.plain_seconds
        ours = within(profile, named["attention core"].peak_bytes)
        found[f"overhead_there{case}"] = None if ours is None else ours.recompute_overhead
        if not case:
            ours = autockpt.solve(profile, static_bytes + int(0.3 * added_bytes))
            found["overhead_at_30"] = ours.recompute_overhead
            found["bound_at_30"] = _bound(profile, ours)
        elif layers < 24:
            found[f"lowest_share{case}"] = adding(profile, lowest_with(profile, "all"))
    return found


def gpipe() -> Figures:
    """How many blocks of a transformer train in 8 GB, plain and with every block recomputed, by two recorded depths."""
    usable_bytes, few, more = 8 * 10**9, 6, 12
    steps = {layers: recorded(functools.partial(encoder, layers, 1024, 16, 8, 1024), V100) for layers in (few, more)}
    found: Figures = {"usable_bytes": usable_bytes}
    for key, solver in (("layers_plain", "none"), ("layers", "all")):
        plans = {layers: lowest_with(profile, solver) for layers, profile in steps.items()}
        rise = (plans[more].peak_bytes - plans[few].peak_bytes) / (more - few)
        found[key] = few + math.floor((usable_bytes - plans[few].peak_bytes) / rise)
        found["overhead"] = plans[more].recompute_overhead
    return found


def checkmate() -> Figures:
    """VGG-19 on a V100 of 16 GB: the largest batches, and what Checkmate's largest costs here."""
    samples, theirs, gpu = 64, 289, "v100-16gb"
    profile = recorded(lambda: (VGG(), {"images": torch.empty(samples, 3, 224, 224)}), gpu)
    (row,) = find_fits(profile, [gpu]).rows
    plan = within(Batches.of(profile, samples).at(theirs), DEVICES[gpu].usable_bytes)
    overhead = None if plan is None else plan.recompute_overhead
    return {"largest": row.largest, "largest_plain": row.largest_plain, "overhead_at_289": overhead}


def monet() -> Figures:
    """ResNet-50 in single precision, at MONeT's shares of the plain peak."""
    profile = Batches.of(recorded(MODELS["resnet-50"], V100), 256).at(184)
    return at_share(profile, 4.99 / 15.06, 8.01 / 15.06)


def ogc() -> Figures:
    """ResNet-152 in single precision, at a fifth of the plain peak, and the lowest with whole calls."""
    profile = recorded(MODELS["resnet-152"], V100)
    return at_share(profile, 0.19)


def dtr() -> Figures:
    """An encoder with dropout, at DTR's shares of the plain peak."""
    profile = recorded(lambda: encoder(12, 1024, 16, 32, 512), V100)
    return at_share(profile, 4.2 / 9.87, 6.19 / 9.87)


def hiremate() -> Figures:
    """GPT-2 XL, with 50 to 70 % less than what the plain step adds."""
    return at_share(Profile.load("gpt2-xl"), 0.5, 0.4, 0.3, added=True)


def rockmate() -> Figures:
    """GPT-2 XL on twice to four times the batch, in the plain peak of one: throughput over the plain one."""
    profile = Profile.load("gpt2-xl")
    batches, budget_bytes = Batches.of(profile, 8), plain_of(profile).peak_bytes
    found: Figures = {}
    for times in (2, 3, 4):
        plan = within(batches.at(8 * times), budget_bytes)
        found[f"throughput_{times}"] = None if plan is None else 1 / (1 + plan.recompute_overhead)
    return found


def titan() -> Figures:
    """Llama of 1 B: how much faster than where every block is recomputed, with a little more memory."""
    profile = Profile.load("llama-1b")
    every = next(iter(switches(profile)))
    full = 1 + every.recompute_seconds / profile.plain_seconds
    found: Figures = {"full_overhead": full - 1}
    for more in (0.0, 0.3, 1.0, 3.0):
        plan = within(profile, every.peak_bytes + int(more * GIB))
        found[f"faster_{more:g}"] = None if plan is None else full / (1 + plan.recompute_overhead) - 1
        found[f"most_{more:g}"] = None if plan is None else full / (1 + _bound(profile, plan)) - 1
    return found


def moved() -> Figures:
    """Llama of 1 B, some of it waiting on the host at 25 GB/s each way: what that costs beside recomputing alone."""
    profile = Profile.load("llama-1b")
    plain, static_bytes = plain_of(profile), profile.static.total_bytes
    found: Figures = {}
    for percent in (80, 60, 50):
        budget_bytes = static_bytes + percent * (plain.peak_bytes - static_bytes) // 100
        for key, offload in (("alone", None), ("moved", "host@25GB/s")):
            plan = within(profile, budget_bytes, offload=offload)
            found[f"{key}_{percent}"] = None if plan is None else plan.recompute_overhead
    return found
