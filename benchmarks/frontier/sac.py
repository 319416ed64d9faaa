"""PyTorch's `torch.distributed._tools` for selective recomputation: which operators of a block are saved, by MILP.

torch ships estimators and solvers, and nothing that applies what they find; its cost models need CUDA. Here a roofline
of an ordinary core stands in for those, and every block saves what the solver says.
"""

from __future__ import annotations

import copy
import functools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import flop_registry

from benchmarks.frontier.blocks import find_blocks
from benchmarks.frontier.methods import Applied, NotHere, patched
from tests.zoo import Case

__all__ = ["Estimate", "selective"]

FLOPS_PER_MILLISECOND, BYTES_PER_MILLISECOND = 5e7, 1e7


class Estimate:
    """What torch's estimator says about a model's modules, found out once."""

    def __init__(self) -> None:
        self._stats: dict[str, Any] | None = None

    def stats(self, case: Case) -> dict[str, Any]:
        """Return `SACStats` by qualified name."""
        if self._stats is None:
            self._stats = _estimate(case)
        return self._stats


@contextmanager
def selective(case: Case, *, estimate: Estimate, share: float) -> Iterator[Applied]:
    """Save in every block what the solver chooses for that share of the block's bytes, and recompute the rest."""
    from torch.distributed._tools.sac_ilp import get_optimal_checkpointing_policy_per_module as solve

    began = time.perf_counter()
    stats, names = estimate.stats(case), {module: name for name, module in case.model.named_modules()}
    solved: dict[str, list[int]] = {}
    forwards = {}
    for block in (block for blocks in find_blocks(case.model) for block in blocks):
        # The estimator names modules from its root's class on, and knows no leaf.
        name = f"{type(case.model).__name__}.{names[block]}"
        if name not in stats:
            raise NotHere(f"the estimator says nothing about {names[block]!r}")
        key = repr((stats[name].func_names, stats[name].memory))
        if key not in solved:
            solved[key] = solve(stats[name], share)
            if not solved[key]:
                raise NotHere(f"the solver finds nothing for {names[block]!r}")
        contexts = functools.partial(_contexts, stats[name].func_names, solved[key])
        forwards[block] = functools.partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    planning_seconds = time.perf_counter() - began
    with patched(forwards):
        yield Applied(case=case, facts={"planning_seconds": planning_seconds})


def _contexts(names: list[str], saved: list[int]) -> Any:
    """Make the contexts for one execution of a block.

    Operators are known by name and occurrence: transformers run a few others under FakeTensorMode, to make masks.
    """
    from torch.distributed._tools.sac_estimator import OPS_TO_ALWAYS_SKIP

    expected, ran = Counter[str](), Counter[str]()
    chosen = set()
    for name, save in zip(names, saved, strict=True):
        if save:
            chosen.add((name, expected[name]))
        expected[name] += 1

    def policy(context: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if function in OPS_TO_ALWAYS_SKIP:
            return CheckpointPolicy.PREFER_RECOMPUTE
        name = function._overloadpacket.__name__
        ran[name] += 1
        return CheckpointPolicy.MUST_SAVE if (name, ran[name] - 1) in chosen else CheckpointPolicy.PREFER_RECOMPUTE

    # Cached results that are changed later are let through: what that does to gradients is compared.
    return create_selective_checkpoint_contexts(policy, allow_cache_entry_mutation=True)


def _estimate(case: Case) -> dict[str, Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.sac_estimator import SACEstimator

    model, mode = copy.deepcopy(case.model), FakeTensorMode()
    _make_fake(model, mode)
    kwargs = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in case.kwargs.items()}
    estimator = SACEstimator()
    cast("Any", estimator)._estimate_runtime = _roofline
    with mode, estimator:
        model(**kwargs)
    return estimator.sac_mod_stats


def _make_fake(model: nn.Module, mode: Any) -> None:
    """Give a model tensors that have shapes and no contents."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, mode.from_tensor(buffer))


def _roofline(function: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    """Return what an operator returns, and its milliseconds by FLOPs or bytes, whichever take longer."""
    out = function(*args, **(kwargs or {}))
    moved = sum(t.numel() * t.element_size() for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
    counted = flop_registry.get(function._overloadpacket)
    flops = counted(*args, **(kwargs or {}), out_val=out) if counted else 0
    return out, max(flops / FLOPS_PER_MILLISECOND, moved / BYTES_PER_MILLISECOND)
