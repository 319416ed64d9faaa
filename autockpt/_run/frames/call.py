"""What a frame knows of one member's call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ... import _torch_private
from .generators import States
from .selection import Selection
from .state import Autocast, ModuleState

BOUNDARY = -1
"""`Ref.call` of a tensor that the boundary holds."""


class Ref(NamedTuple):
    """Where a replay finds a tensor: leaf number `leaf` of what the frame's call number `call` returned."""

    call: int
    leaf: int


class Call:
    """One member's call, with what a replay of it needs.

    Attributes:
        key: the call's key.
        forward: what to call.
        arguments: its arguments, encoded.
        keywords: names of the last of them.
        refs: where the tensors among the arguments come from.
        module: the module's state.
        autocast: autocast's settings; None where it was off.
        attention: which attention kernels were allowed.
        random: generator states to set before it.
        generators: all that it could draw from.
        end: number of slots in the frame when it returned; None if it has not.
        selection: its units; None where all of it is recomputed.
    """

    __slots__ = (
        "arguments",
        "attention",
        "autocast",
        "end",
        "forward",
        "generators",
        "key",
        "keywords",
        "module",
        "random",
        "refs",
        "selection",
    )

    def __init__(
        self,
        key: str,
        forward: Callable[..., Any],
        arguments: list[Any],
        keywords: tuple[str, ...],
        refs: list[Ref],
        module: ModuleState,
        random: States,
    ) -> None:
        self.key = key
        self.forward = forward
        self.arguments = arguments
        self.keywords = keywords
        self.refs = refs
        self.module = module
        self.autocast = Autocast(module.devices) if _torch_private.any_autocast_enabled() else None
        self.random = random
        self.generators = [generator for generator, _ in random]
        self.attention = _torch_private.attention_backends()
        self.end: int | None = None
        self.selection: Selection | None = None
