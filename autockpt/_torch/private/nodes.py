"""Nodes of autograd: their numbers, and how many a forward makes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

COMPILER = "torch._dynamo.callback"
"""The module that tells when torch begins and ends to compile; torch loads it with the compiler."""


def saving_node() -> int:
    """Return, inside a pack hook, the sequence number of the autograd node that saves the tensor."""
    return int(torch._C._autograd._get_sequence_nr()) - 1


def node_number(node: Any) -> int:
    """Return the sequence number of an autograd node; see `saving_node`."""
    return int(node._sequence_nr())


def running_node() -> Any:
    """Return the node that backward runs in this thread; None outside of a backward."""
    return torch._C._current_autograd_node()


def running_backward() -> int:
    """Return the number of the backward that runs in this thread; -1 outside of a backward."""
    return int(torch._C._current_graph_task_id())


def reads_late_writes() -> bool:
    """Whether the running node is an RReLU's, whose forward writes its noise tensor after autograd has saved it."""
    node = running_node()
    return node is not None and node.name().startswith("RreluWithNoise") and bool(node._saved_training)


def python_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes of custom functions (`torch.autograd.Function`) that can be reached from `nodes`, each once."""
    todo, seen = list(nodes), set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield node
        todo.extend(following for following, _ in node.next_functions)


def cast_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the leaf that a tensor is a cast of, as autocast makes and caches them; None if it is no such cast."""
    node = tensor.grad_fn
    if node is None or not node.name().startswith("ToCopyBackward"):
        return None
    leaf: torch.Tensor | None = getattr(node.next_functions[0][0], "variable", None)
    return leaf


class NodeCount:
    """Counts the nodes of autograd that this thread makes in a block, without those made while torch compiles.

    Attributes:
        made: how many.
    """

    def __init__(self) -> None:
        self.made = 0
        self._since: int | None = None  # the newest node as counting began, and None while torch compiles

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in a block."""
        compiler: Any = sys.modules.get(COMPILER)
        handler = None if compiler is None else compiler.callback_handler
        thread = threading.get_ident()

        def pause(_: object) -> None:
            if threading.get_ident() == thread:  # numbers are each thread's own
                self._pause()

        def go_on(_: object) -> None:
            if threading.get_ident() == thread:
                self._since = saving_node()

        self._since = saving_node()
        if handler is not None:
            handler.register_start_callback(pause)
            handler.register_end_callback(go_on)
        try:
            yield
        finally:
            if handler is not None:
                handler.remove_start_callback(pause)
                handler.remove_end_callback(go_on)
            self._pause()

    def _pause(self) -> None:
        if self._since is not None:
            self.made += saving_node() - self._since
        self._since = None
