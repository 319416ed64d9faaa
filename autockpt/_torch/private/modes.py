"""Function modes, dispatch modes and saved-tensors hooks of this thread: which are on, and how they are switched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Hooks: TypeAlias = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]

# Looked up once, as in `frames.py`.
_C, _autograd = torch._C, torch._C._autograd

push_hooks: Callable[[Callable[[Tensor], Any], Callable[[Any], Tensor]], None]
push_hooks = _autograd._push_saved_tensors_default_hooks
"""Make a pack and an unpack hook the innermost (the context manager costs twice as much)."""

pop_hooks: Callable[[], None] = _autograd._pop_saved_tensors_default_hooks
"""Take the innermost saved-tensors hooks away."""

push_function_mode: Callable[[Any], None] = _C._push_on_torch_function_stack
"""Make a torch function mode the innermost (a block costs more, and an interrupt may fall into its ends)."""

pop_function_mode: Callable[[], Any] = _C._pop_torch_function_stack
"""Take the innermost torch function mode away."""


outer_hooks: Callable[[], Hooks | None] = functools.partial(_autograd._top_saved_tensors_default_hooks, True)
"""Return the innermost saved-tensors hooks, None if there are none."""


def only_move(hooks: Hooks) -> bool:
    """Whether saved-tensor hooks are known to bring tensors back as they were: those of `save_on_cpu`, and ours."""
    pack = hooks[0]
    moves = str(getattr(pack, "__qualname__", "")).startswith(f"{torch.autograd.graph.save_on_cpu.__name__}.")
    return moves or str(getattr(pack, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def suspend_function_mode(mode: object) -> bool:
    """Switch off the torch function mode `mode` if it is the innermost; return whether it was."""
    depth = _C._len_torch_function_stack()
    if depth and _C._get_function_stack_at(depth - 1) is mode:
        _C._pop_torch_function_stack()
        return True
    return False


any_function_mode: Callable[[], int] = _C._len_torch_function_stack
"""How many torch function modes are on in this thread."""


any_dispatch_mode: Callable[[], int] = _C._len_torch_dispatch_stack
"""How many modes that see every operator are on in this thread."""


def function_modes() -> list[Any]:
    """Return the torch function modes that are on in this thread, the innermost last."""
    depth = _C._len_torch_function_stack()
    return [_C._get_function_stack_at(i) for i in range(depth)] if depth else []


def set_function_modes(modes: list[Any]) -> None:
    """Have just these torch function modes on in this thread."""
    while _C._len_torch_function_stack():
        _C._pop_torch_function_stack()
    for mode in modes:
        push_function_mode(mode)


def dispatch_modes() -> list[Any]:
    """Return the modes that see every operator of this thread, the innermost last."""
    depth = _C._len_torch_dispatch_stack()
    return [_C._get_dispatch_stack_at(i) for i in range(depth)] if depth else []


def of_the_user(modes: list[Any]) -> list[Any]:
    """Return the dispatch modes whose class is neither torch's nor autockpt's.

    Modes of those two count, record or cache, and do not change results. A selective checkpoint's mode returns each
    cached result only once, so a replay must not run under it.
    """
    return [mode for mode in modes if type(mode).__module__.partition(".")[0] not in ("torch", "autockpt")]


def set_dispatch_modes(modes: list[Any]) -> None:
    """Have just these dispatch modes on in this thread."""
    while _C._len_torch_dispatch_stack():
        _C._pop_torch_dispatch_stack(None)
    for mode in modes:
        _C._push_on_torch_dispatch_stack(mode)


class Modes(NamedTuple):
    """What is on in this thread: function modes, dispatch modes, and the innermost saved-tensors hooks."""

    functions: list[Any]
    dispatches: list[Any]
    hooks: Hooks | None


def modes_on() -> Modes:
    """Return the modes and the innermost hooks that are on."""
    return Modes(function_modes(), dispatch_modes(), outer_hooks())


def end_modes(before: Modes) -> None:
    """End the modes and hooks that were put on since `modes_on`."""
    while (innermost := outer_hooks()) is not None and (before.hooks is None or innermost[0] is not before.hooks[0]):
        pop_hooks()
    set_function_modes(before.functions)
    set_dispatch_modes(before.dispatches)
