"""Frames of functions that recompute by themselves, whatever plan is around them: one call, one frame.

    what packs around it      the frame's boundary waits
    nothing                   as it is
    hooks of the user's       where they put it
    another frame, a replay   in slots of that frame, whose replay runs the function again and fills them
    a recorded step           where the step's saved tensors wait: it counts as saved by the caller

A replay of a frame around the function must save what its forward saved. So the outer call notes whether the function
had a frame: what its replays show meanwhile counts from the next forward on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..._calls.found.around import Generator, states_of
from ..._calls.found.held import Detached, Handed
from ..._calls.found.host_generators import NUMPY, PYTHON
from ..._calls.found.reached import ReachedState
from ..._torch import private
from .frame import Frame, MemberCall, unpack
from .pack import Pack
from .plain import Plain
from .recording import Recording
from .replay import Replay
from .routing import member
from .table import Handle, Place
from .thread import Function, Scope, thread

_PLACE = Place(segment=0, position=0, last=True, buffers=None, linked=False, selective=False)


def run_function(
    function: Function, key: str, state: ReachedState, handle: Handle, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a function in a frame of its own, or plain where its replays were refused.

    Args:
        function: the function.
        key: what it is called.
        state: what it finds; it has just been taken.
        handle: its table has what replays the frame.
        args: its arguments by position.
        kwargs: its arguments by keyword.
    """
    replayers, around = handle.table.replayers, _around()
    wanted = replayers is None or not replayers.refused
    if isinstance(around, (Pack, Replay)):
        wanted = around.has_frame(wanted)
    if not wanted:
        return function(*args, **kwargs)
    scope, units = Scope(handle, None), thread.units
    scope.records, thread.units = _recording, None
    run = _run if replayers is None or replayers.rehearsed else _run_first
    try:
        return member(scope, functools.partial(run, function), state, key, _PLACE, (state.taken, *args), kwargs)
    finally:
        scope.end()
        thread.units = units


def _run(function: Function, _: object, /, *args: Any, **kwargs: Any) -> Any:
    """Run the function itself, in forward: what it closes over is there."""
    return function(*args, **kwargs)


def _run_first(function: Function, _: object, /, *args: Any, **kwargs: Any) -> Any:
    """Run the function in its first forward: it may use `torch.func.grad`, which allows no hooks on saved tensors.

    Its replay then fails, and is the reason to keep it. What it saves meanwhile stays where it is.
    """
    with private.yielding(_nothing):
        return function(*args, **kwargs)


def _nothing() -> None:
    """Do nothing: the replay tells."""


def _around() -> object:
    """Return what the innermost saved-tensor hooks belong to, if they are methods of ours or of a replay."""
    hooks = private.outer_hooks()
    if hooks is None:
        return None
    pack: Any = hooks[0]
    if isinstance(pack, functools.partial) and pack.args and isinstance(pack.args[0], weakref.ref):
        return pack.args[0]()
    return getattr(pack, "__self__", None)


def _recording(segment: int, replayer: Any, moves: None = None) -> _FunctionRecording:
    """Return the recording of a function's frame. In a replay around it nothing is compared: forward was."""
    return _FunctionRecording(segment, Plain() if thread.replays else replayer, moves)


class _FunctionPack(Pack):
    """The pack hook of a function.

    Attributes:
        recomputed_function: what the function is called.
    """

    __slots__ = ("recomputed_function",)

    def __init__(self, frame: Frame, owners: dict[int, Tensor]) -> None:
        super().__init__(frame, owners)
        self.recomputed_function = frame.calls[-1].key


class _FunctionRecording(Recording):
    """Records the frame of a function; arguments as for `Recording`."""

    packs = _FunctionPack

    def _begun(self, key: str, forward: Callable[..., Any], state: Any, *more: Any) -> MemberCall:
        # The frame holds no function: it closes over names of the caller's, which may get results with a graph.
        call = super()._begun(key, state.again, state, *more)
        # A plan reads these only where a rehearsal saw them move. Other functions may have the code of this one.
        others: list[Generator] = [each for each in (PYTHON, NUMPY) if each not in call.generators]
        call.generators += others
        call.random += states_of(others)
        return call

    def _held(self, tensor: Tensor, hooks: private.Hooks | None) -> Detached:
        innermost, around = private.outer_hooks(), _around()
        if innermost is None:
            return Detached(tensor, "a tensor that it reads")
        if isinstance(around, Pack):
            return Handed(tensor, (innermost[0], unpack))  # no hooks of the user's round it: a replay computes with it
        if isinstance(around, Replay) or private.only_move(innermost):
            return Handed(tensor, innermost)
        return super()._held(tensor, hooks)
