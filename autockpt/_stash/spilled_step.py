"""A step of the user's whose saved tensors wait elsewhere until its backward: it keeps to a budget without a plan."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.optim import Optimizer

from .._calls.values import tensors
from .._data.errors import NotApplicable
from .._ranks.fsdp import gathered_parameters
from .._torch import private
from . import open_stash
from .base import Stash
from .spill import Spill, SpilledTensor

LATE_WRITES = (
    "an RReLU draws its noise after autograd has saved it. In a recorded step saved tensors wait elsewhere, which this "
    "one cannot. Skip the optimizer's step and give a batch: apply(model, budget, inputs=batch)."
)

Pack: TypeAlias = Callable[[torch.Tensor], Any]
Unpack: TypeAlias = Callable[[Any], torch.Tensor]


class _Foreign(NamedTuple):
    """What a hook of the user's put in the place of a saved tensor."""

    packed: Any


class SpilledStep:
    """A step of the user's, from its first forward to the next step's. Only its saved tensors are touched.

    Args:
        model: the model that trains, or all of several.
        device: the device that it trains on.
        arguments: those of its first forward. They stay where they are.
        stash: where what it saves waits; None for one of its own.

    Attributes:
        foreign: whether hooks of the user's put something else in the place of saved tensors.
        unhooked: whether forward switched hooks on saved tensors off for a while.
        inside: whether one of its forwards is running.
        reached: whether a backward has read what it saved.

    Raises:
        NoRoom: there is no temporary folder. Its forwards raise it too, if the stash has no room.
    """

    def __init__(
        self, model: torch.nn.Module, device: torch.device, arguments: object, stash: Stash | None = None
    ) -> None:
        self.device, self.model, self.foreign, self.unhooked = device, model, False, False
        self.inside, self.reached = False, False
        held = [*tensors(arguments), *model.parameters(), *gathered_parameters(model), *model.buffers()]
        self.spill = Spill(stash or open_stash(device), device, held)

    def forward(self, arguments: object, run: Callable[[], Any], name: str = "") -> Any:
        """Run one of its forwards: ``run()``, the model's own, or that of the one of several models with this name."""
        with self.hooks(self._pack, self._unpack):
            return self.running(run)

    def running(self, run: Callable[[], Any]) -> Any:
        """Run something, and count it as `inside` a forward."""
        before, self.inside = self.inside, True
        try:
            return run()
        finally:
            self.inside = before

    def hooks(self, pack: Pack, unpack: Unpack) -> AbstractContextManager[None]:
        """Put hooks on saved tensors over the user's hooks that are on. The user's hooks see all that they saw before.

        If they put something else in the place of a tensor, it stays as it is, and `foreign` is set. If forward
        switches hooks off, there are none for that while, and `unhooked` is set.
        """
        outer_pack, outer_unpack = private.outer_hooks() or (None, None)

        @private.never_compiled
        def packing(tensor: torch.Tensor) -> Any:
            packed = outer_pack(tensor) if outer_pack is not None else tensor
            if packed is tensor:
                return pack(tensor)
            self.foreign = True
            return _Foreign(packed)

        @private.never_compiled
        def unpacking(held: Any) -> torch.Tensor:
            """Undo our packing, then the user's."""
            if not self.inside:
                self.reached = True
                self.backward_reads()
            # An RReLU's node: its noise was written after it had been saved, so what was spilled is older.
            if not isinstance(held, _Foreign) and private.reads_late_writes():
                raise NotApplicable(LATE_WRITES)
            tensor: torch.Tensor = held.packed if isinstance(held, _Foreign) else unpack(held)
            return outer_unpack(tensor) if outer_unpack is not None else tensor

        return private.yielding_hooks((packing, unpacking), self._yield)

    def call(self, arguments: object, run: Callable[[], Any], name: str = "") -> Any:
        """Run a call of the model, or of another one of several, that comes from inside one of the forwards."""
        return run()

    def backward_begins(self) -> None:
        """Note that a backward begins, or has begun; called inside it."""

    def backward_reads(self) -> None:
        """Note that a backward reads a saved tensor. It may have begun at a tensor that the model did not return."""

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Note what an optimizer has after its step."""

    def drop(self) -> None:
        """Release what the step holds. Graphs that are alive keep what they need.

        Without this its memory would wait for the garbage collector: patched forwards refer to the step in a cycle.
        """
        self.spill.close()

    def _as_backward_ends(self, method: Callable[[], None], *, late: bool = False) -> None:
        """Have a method of this step called when the running backward ends.

        A device's thread may hold the callback for a while longer, and the callback must not hold the step. FSDP2
        reduces its last gradients in such a callback too. A `late` method is called after all other callbacks, so the
        gradients are reduced by then.
        """
        weak = weakref.WeakMethod(method)

        def call() -> None:
            if (alive := weak()) is not None:
                alive()

        private.after_backward(functools.partial(private.after_backward, call) if late else call)

    def _yield(self) -> None:
        self.unhooked = True

    @private.never_compiled
    def _pack(self, tensor: torch.Tensor) -> Any:
        with private.no_torch_functions():
            held = self.spill.take(tensor)
            # A result refers to the node that saves it. No collector sees this cycle, and only a backward breaks it.
            return tensor.detach() if held is tensor else held

    @private.never_compiled
    def _unpack(self, held: Any) -> torch.Tensor:
        tensor: torch.Tensor = held.restore() if isinstance(held, SpilledTensor) else held
        return tensor
