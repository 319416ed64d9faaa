"""What inductor makes of joint graphs, seen while no kernel of it is compiled: only who compiles by it imports this.

joint graph ─▶ a partition ─▶ two graphs, lowered ─▶ generated code: allocations, kernels, frees ─▶ run on fake tensors
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor import async_compile, ir
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.graph import GraphLowering

Config = Mapping[str, Any]
"""Settings of inductor, as ``torch.compile(options=...)`` takes them."""


def cpp_compiler_is_missing() -> bool:
    """Whether there is no C++ compiler, which inductor needs on a CPU."""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return True
    return False


def in_the_way(config: Config) -> str:
    """Name what somebody set that no plan knows: graphs of CUDA, a partitioner, other code; empty for nothing."""
    found = {**inductor_config.get_config_copy(), **config}
    if found["triton.cudagraphs"]:
        return "CUDA graphs (mode='reduce-overhead' or 'max-autotune')"
    if found["custom_partitioner_fn"] is not None:
        return "a custom_partitioner_fn of your own"
    return next((name for name in ("cpp_wrapper", "memory_planning") if found[name]), "")


def graphs_backend(partition: Any, config: Config) -> Callable[..., Any]:
    """Return inductor as far as its joint graphs, which `partition` cuts; what it returns runs operator by operator."""

    def as_it_is(graph: fx.GraphModule, *_: Any, **__: Any) -> Any:
        return make_boxed_func(graph.forward)

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        settings = {**config, "custom_partitioner_fn": partition}
        run = compile_fx(graph, inputs, inner_compile=as_it_is, config_patches=settings)
        return cast("Callable[..., Any]", run)

    return backend


def code_backend(partition: Any, config: Config) -> Callable[..., Any]:
    """Return inductor with a partition and a user's settings, and with nothing from a cache; see `without_kernels`."""
    settings = {**config, "custom_partitioner_fn": partition, "fx_graph_cache": False}

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return cast("Callable[..., Any]", compile_fx(graph, inputs, config_patches=settings))

    return backend


Made = Mapping[fx.Node, bool | None]
"""What became of operators in generated code: whether a kernel of their own makes them; None for no memory at all."""


@contextmanager
def without_kernels(around: Callable[[Any], Any], told: Callable[[bool, Made], object]) -> Iterator[None]:
    """Let inductor generate code in which no kernel does anything, and compile none, in forwards and backwards inside.

    Args:
        around: is given each call of generated code, and returns what runs in its place.
        told: is told of each code whether it is a backward, and what became of its operators.
    """

    def as_module(graph: Any) -> Any:
        code, _ = graph.codegen()
        told(graph.is_backward, _made(graph, code.value))
        names = {"__name__": "generated_code", **graph.constants, **graph.torchbind_constants}
        pool, async_compile.AsyncCompile = async_compile.AsyncCompile, _NoKernels  # type: ignore[misc, assignment]
        try:
            exec(compile(code.value, "<generated code>", "exec"), names)
        finally:
            async_compile.AsyncCompile = pool  # type: ignore[misc]
        names |= ALLOCATING
        return SimpleNamespace(call=around(names["call"]))

    own = GraphLowering.compile_to_module
    GraphLowering.compile_to_module = as_module  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        GraphLowering.compile_to_module = own  # type: ignore[method-assign]


def _made(graph: Any, code: str) -> Made:
    """Return what became of the operators of a graph; of a buffer that is several at once, of each of them."""
    named = set(re.findall(r"\b(buf\d+) = ", code))
    found: dict[fx.Node, bool | None] = {node: None for node in graph.module.graph.nodes if node.op == "call_function"}
    for name, buffer in graph.name_to_buffer.items():
        own, made = buffer.get_origin_node(), not isinstance(buffer, ir.ComputedBuffer)
        for node in (buffer.get_origins() if own is None else (own,)) if name in named else ():
            of = node.args[0] if node.target is operator.getitem else node
            found[of] = made or bool(found.get(of))
    return found


class _NoKernels:
    """Stands where kernels would be compiled."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: _nothing


def _nothing(*_: Any, **__: Any) -> None:
    """Stand where a kernel would run."""


def _empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _reinterpreted(tensor: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


ALLOCATING: Mapping[str, Any] = {
    "empty_strided_cpu": _empty,
    "reinterpret_tensor": _reinterpreted,
    "assert_size_stride": _nothing,
    "assert_alignment": _nothing,
}
"""What generated code calls past the dispatcher, in the form in which modes see it."""
