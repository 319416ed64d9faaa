"""PyTorch's `torch.distributed._tools`: selective recomputation by MILP.

Two solvers: one chooses which operators of a given block are saved, the other which modules recompute, and how much of
each, within a budget for the whole step. torch ships them with estimators that need CUDA, and nothing that applies what
they find. Here a roofline of an ordinary core stands in for the cost models, and modules save what the solvers say.
"""

from __future__ import annotations

import copy
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
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

__all__ = ["Estimate", "milp", "selective"]

FLOPS_PER_MILLISECOND, BYTES_PER_MILLISECOND = 5e7, 1e7


class Estimate:
    """What torch's estimators say about a model, each found out once."""

    def __init__(self) -> None:
        self._modules: Any = None
        self._graph: Any = None

    def modules(self, case: Case) -> Any:
        """Return the estimator of modules, after a forward."""
        if self._modules is None:
            fake, mode = _fake(case)
            self._modules = _estimate_modules(fake, mode)
        return self._modules

    def graph(self, case: Case) -> Any:
        """Return the tree of modules that the solver for a whole step takes."""
        if self._graph is None:
            self._graph = _estimate_step(case)
        return self._graph


@contextmanager
def selective(case: Case, *, estimate: Estimate, share: float) -> Iterator[Applied]:
    """Save in every block what the solver chooses for that share of the block's bytes, and recompute the rest."""
    began = time.perf_counter()
    names = {module: name for name, module in case.model.named_modules()}
    kept = {names[block]: share for blocks in find_blocks(case.model) for block in blocks}
    forwards = _forwards(case.model, estimate.modules(case).sac_mod_stats, kept)
    planning_seconds = time.perf_counter() - began
    with patched(forwards):
        yield Applied(case=case, facts={"planning_seconds": planning_seconds})


@contextmanager
def milp(case: Case, *, estimate: Estimate, share: float) -> Iterator[Applied]:
    """Recompute what the solver chooses so that the step adds no more than that share of what the plain step adds."""
    from torch.distributed._tools.ilp_utils import get_peak_memory_runtime_baseline
    from torch.distributed._tools.sac_ilp import sac_milp

    began = time.perf_counter()
    graph = estimate.graph(case)
    parameter_bytes = graph.nodes[0]["param_per_module"]
    asked_bytes = int(share * (get_peak_memory_runtime_baseline(graph)[0] - parameter_bytes))
    dropped, _, predicted_bytes = sac_milp(graph, (parameter_bytes + asked_bytes) / 2**30)
    if predicted_bytes < 0:
        raise NotHere("the solver finds nothing")
    root = f"{type(case.model).__name__}."
    kept = {name.removeprefix(root): 1 - part for name, part in dropped.items()}
    forwards = _forwards(case.model, estimate.modules(case).sac_mod_stats, kept)
    facts = {
        "planning_seconds": time.perf_counter() - began,
        "asked_bytes": asked_bytes,
        "predicted_step_bytes": predicted_bytes - parameter_bytes,
    }
    with patched(forwards):
        yield Applied(case=case, facts=facts)


def _forwards(model: nn.Module, stats: dict[str, Any], kept: dict[str, float]) -> dict[nn.Module, Callable[..., Any]]:
    """Make for each named module a forward that saves so much of its bytes and recomputes the rest."""
    from torch.distributed._tools.sac_ilp import get_optimal_checkpointing_policy_per_module as solve

    solved: dict[str, list[int]] = {}
    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for name, share in kept.items():
        # The estimator names modules from its root's class on, and knows no leaf.
        known = stats.get(f"{type(model).__name__}.{name}")
        if known is None:
            raise NotHere(f"the estimator says nothing about {name!r}")
        key = repr((known.func_names, known.memory, share))
        if key not in solved:
            solved[key] = solve(known, share)
            if not solved[key]:
                raise NotHere(f"the solver finds nothing for {name!r}")
        contexts = functools.partial(_contexts, known.func_names, solved[key])
        module = model.get_submodule(name)
        forwards[module] = functools.partial(checkpoint, module.forward, use_reentrant=False, context_fn=contexts)
    return forwards


def _contexts(names: list[str], saved: list[int]) -> Any:
    """Make the contexts for one execution of a module.

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


def _estimate_modules(fake: Case, mode: Any) -> Any:
    from torch.distributed._tools.sac_estimator import SACEstimator

    estimator = SACEstimator()
    cast("Any", estimator)._estimate_runtime = _roofline
    with mode, estimator:
        fake.forward()
    return estimator


def _estimate_step(case: Case) -> Any:
    from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    fake, mode = _fake(case)
    memory, seconds = MemTracker(), RuntimeEstimator()
    memory.track_external(fake.model)
    with mode, memory:
        fake.step()
    seconds._estimate, seconds._estimate_mode_type = _roofline, "roofline of a core"
    with mode, seconds:
        fake.step()
    modules = _estimate_modules(fake, mode)
    return parse_module_info(aggregate_stats(fake.model, memory, seconds, modules, torch.device("cpu")))


def _fake(case: Case) -> tuple[Case, Any]:
    """Return a copy whose tensors have shapes and no contents, and the mode that they belong to."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model, mode = copy.deepcopy(case.model), FakeTensorMode()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(mode.from_tensor(parameter.detach()), parameter.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, mode.from_tensor(buffer))
    kwargs = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in case.kwargs.items()}
    return Case(model, kwargs), mode


def _roofline(function: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    """Return what an operator returns, and its milliseconds by FLOPs or bytes, whichever take longer."""
    out = function(*args, **(kwargs or {}))
    moved = sum(t.numel() * t.element_size() for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
    counted = flop_registry.get(function._overloadpacket)
    flops = counted(*args, **(kwargs or {}), out_val=out) if counted else 0
    return out, max(flops / FLOPS_PER_MILLISECOND, moved / BYTES_PER_MILLISECOND)
