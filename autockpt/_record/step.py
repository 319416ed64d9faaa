"""The training step that is recorded: how the model is called, which loss, which gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .._calls.failing import BATCH, LOSS, described, described_batch, failing
from .._calls.values import decode, encode, tensors
from .._data.errors import NotApplicable, ProfilingError
from .._torch import private
from .._torch.devices import device_of
from ..solvers.units import shown
from .loss import assumed_loss

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One training step of a model on one batch, without the optimizer.

    Attributes:
        model: the model.
        args: positional inputs.
        kwargs: inputs by keyword.
        loss: maps the model's outputs to a scalar.
        device: where the parameters live.
        leaves: what gradients are taken of: parameters and inputs that require them.
        held: the gradients that these have before the step.
        source: a leaf behind the inputs that come out of a graph of the caller's; None where there is none.
        hooks: whether the model's own hooks run; they do not where they have seen the arguments already.
        holds_outputs: whether outputs are held until backward is over, as where a loop still has a name for them.
        by_backward: whether gradients come only by ``.backward()``, as those of units of FSDP2 do.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Loss
    device: torch.device
    leaves: tuple[torch.Tensor, ...]
    held: tuple[torch.Tensor | None, ...]
    source: torch.Tensor | None = None
    hooks: bool = True
    holds_outputs: bool = True
    by_backward: bool = False

    def forward(self) -> tuple[Any, torch.Tensor]:
        """Run the model and the loss; return the outputs and the scalar.

        Where the caller is inside an autocast region of their own, weights are cast as in a region that spans this
        forward: anew, and the casts go with it.

        Raises:
            ProfilingError: what comes out is no scalar that requires a gradient, forward does not run where autograd's
                saved tensors are watched, or it or the loss raises an error of Python's usual classes, which is the
                cause of this one.
        """
        if not torch.is_grad_enabled():
            raise ProfilingError("gradients are switched off (torch.no_grad); a training step needs them on")
        torch.clear_autocast_cache()
        try:
            args, kwargs = self._arguments()
            with failing("forward", lambda: described_batch(self.args, self.kwargs), BATCH):
                outputs = (self.model if self.hooks else self.model.forward)(*args, **kwargs)
            with failing("the loss", lambda: f"the outputs ({described(outputs)})", LOSS):
                scalar = self.loss(outputs)
        except RuntimeError as raised:
            error = raised.own if isinstance(raised, ProfilingError) else raised
            if "saved tensor hooks" not in str(error) and not _switches_hooks_off(error):
                raise
            raise ProfilingError(
                "forward uses torch.func.grad, vjp or jacrev, or switches saved-tensor hooks off in another way, and "
                "recording needs them. Write a plan by hand that keeps the calls which do."
            ) from error
        finally:
            torch.clear_autocast_cache()
        if not _is_loss(scalar):
            if not any(tensor.requires_grad for tensor in tensors(outputs)):
                raise ProfilingError(
                    f"no output of the model requires a gradient (outputs: {described(outputs)}). "
                    "Give loss=, a function from the outputs to a scalar."
                )
            raise ProfilingError(
                f"the loss must be a tensor with one element that requires a gradient, found {described(scalar)}"
            )
        return outputs, scalar

    def _arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The inputs in containers of their own, which forward may fill, and cut off from the caller's graph."""
        leaves: list[torch.Tensor] = []
        templates = encode((self.args, dict(self.kwargs)), leaves)
        if self.source is not None:
            cut = {id(leaf): _Cut.apply(self.source, leaf.detach()) for leaf in leaves if _has_graph(leaf)}  # type: ignore[no-untyped-call]
            leaves = [cut.get(id(leaf), leaf) for leaf in leaves]
        args, kwargs = decode(templates, leaves)
        return args, kwargs

    def gradients(self, scalar: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run backward, outside autocast, without touching ``.grad`` or firing hooks that step an optimizer."""
        with _outside_autocast(self.device):
            if self.by_backward or private.has_reentrant_checkpoint(scalar):
                return self._gradients_by_backward(scalar)
            return torch.autograd.grad(scalar, self.leaves, allow_unused=True)

    def add_gradients(self, scalar: torch.Tensor) -> None:
        """Run backward, outside autocast, and add to the gradients that are held; not where hooks would hear of it."""
        if any(leaf._post_accumulate_grad_hooks for leaf in self.leaves):
            self.gradients(scalar)
            return
        with _outside_autocast(self.device):
            scalar.backward()

    def _gradients_by_backward(self, scalar: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run ``.backward()``, the only way through reentrant checkpoints, with the existing gradients set aside."""
        if any(leaf._post_accumulate_grad_hooks for leaf in self.leaves):
            raise ProfilingError(
                "the model uses reentrant checkpoints, which need .backward(), and hooks that run after a gradient was "
                "accumulated, which recording must not fire. Use use_reentrant=False, or register the hooks later."
            )
        with self.gradients_aside():
            scalar.backward()
            return tuple(leaf.grad for leaf in self.leaves)

    @contextmanager
    def gradients_aside(self) -> Iterator[None]:
        """Take the gradients that are held off inside the block; what a model adds to ``.grad`` by itself goes with it.

        Reversible layers do in their backward, and layers that train themselves.
        """
        for leaf in self.leaves:
            leaf.grad = None
        try:
            yield
        finally:
            for leaf, gradient in zip(self.leaves, self.held, strict=True):
                leaf.grad = gradient

    def inputs(self) -> list[torch.Tensor]:
        """The tensors of the batch."""
        return tensors((self.args, dict(self.kwargs)))

    @property
    def samples(self) -> int | None:
        """How many samples the batch has: the first dimension of its first tensor; None where no tensor has any."""
        return next((each.shape[0] for each in self.inputs() if each.dim()), 0) or None


class Arguments(NamedTuple):
    """Inputs by position and by keyword."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def training_step(model: torch.nn.Module, inputs: object, loss: Loss | None, *, hooks: bool = True) -> TrainingStep:
    """Make the step that `model` does on `inputs`.

    Args:
        model: the model.
        inputs: a tuple is passed positionally, a mapping by keyword, anything else as the only argument; both at once
            as `Arguments`.
        loss: maps the outputs to a scalar; None for what `assumed_loss` reserves.
        hooks: whether the model's own hooks run.

    Raises:
        NotApplicable: see `refuse_untrainable`.
    """
    if isinstance(inputs, Mapping):
        inputs = Arguments((), inputs)
    elif not isinstance(inputs, Arguments):
        inputs = Arguments(inputs if isinstance(inputs, tuple) else (inputs,), {})
    refuse_untrainable(model, loss)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    given = tensors((inputs.args, dict(inputs.kwargs)))
    if not trainable and not any(tensor.requires_grad for tensor in given):
        raise NotApplicable(
            f"{type(model).__name__} has no parameter that requires a gradient, and no input does: nothing is kept for "
            "backward, so nothing can be recomputed. Set requires_grad on what is to be trained, or, where gradients "
            "pass through a frozen model, on the inputs from which they come."
        )
    batch = [tensor for tensor in given if tensor.requires_grad and tensor.is_leaf]
    source = torch.zeros((), requires_grad=True) if any(map(_has_graph, given)) else None
    leaves = (*trainable, *batch, *(() if source is None else (source,)))
    return TrainingStep(
        model=model,
        args=inputs.args,
        kwargs=inputs.kwargs,
        loss=loss or assumed_loss,
        device=(trainable or list(model.parameters()))[0].device,
        leaves=leaves,
        held=tuple(leaf.grad for leaf in leaves),
        source=source,
        hooks=hooks,
    )


def refuse_untrainable(model: torch.nn.Module, loss: Loss | None) -> None:
    """Refuse what has no training step: no module, one without parameters, or a loss that cannot be called.

    A module whose parameters are all frozen is not refused: gradients may pass through it.

    Raises:
        NotApplicable: there is no training step, or a parameter or buffer has no shape yet.
    """
    refuse_other(model)
    if loss is not None and not callable(loss):
        raise NotApplicable(f"loss is {shown(loss)}; it must be a function from the model's outputs to a scalar.")
    refuse_lazy(model)
    if next(model.parameters(), None) is None:
        raise NotApplicable(f"{type(model).__name__} has no parameter, so it is no model that trains.")


def refuse_other(model: object) -> None:
    """Refuse what is no module.

    Raises:
        NotApplicable: it is none, or a class of modules.
    """
    if not isinstance(model, torch.nn.Module):
        raise NotApplicable(f"a model is a torch.nn.Module, and this is {shown(model)}.")


def refuse_unseen(device: torch.device) -> None:
    """Refuse a device on which no allocation is reported.

    Raises:
        NotApplicable: it is such a one, and says what to do.
    """
    if why := device_of(device).why_never():
        raise NotApplicable(why)


def refuse_lazy(model: torch.nn.Module) -> None:
    """Refuse a model with parameters or buffers that get their shapes in its first forward.

    Raises:
        NotApplicable: it is such a model.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise NotApplicable(
                f"{name} has no shape yet: its lazy module gets one in the first forward. Run one forward, "
                "`with torch.no_grad(): model(batch)`, before autockpt."
            )


def refuse_late_writes(model: torch.nn.Module) -> None:
    """Refuse a model of which no step can wait elsewhere until its backward.

    Raises:
        NotApplicable: it is such a model.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.RReLU):
            raise NotApplicable(
                f"{name} is an RReLU, which draws its noise after autograd has saved it, so your first step cannot be "
                "recorded while it trains. Give a batch: apply(model, budget, inputs=batch), which keeps such calls."
            )


def _has_graph(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and not tensor.is_leaf


class _Cut(torch.autograd.Function):
    """A tensor that needs a gradient, as the result of a graph does, with no graph behind it.

    The caller's own graph must neither be run backward nor, where forward changes its input in place, grow.
    """

    @staticmethod
    def forward(_: Any, source: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        return None, None


@contextmanager
def _outside_autocast(device: torch.device) -> Iterator[None]:
    """Leave the caller's autocast regions, as training loops do before backward."""
    with ExitStack() as stack:
        for kind in {"cpu", device.type}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _switches_hooks_off(error: BaseException) -> bool:
    """Whether an error, whose words are the user's, comes from `disable_saved_tensors_hooks`."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "disable_saved_tensors_hooks"


def _is_loss(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad
