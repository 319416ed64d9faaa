"""The training step that is recorded: how the model is called, which loss, which gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import NotApplicable, ProfilingError
from .._frames.tree import tensors

__all__ = ["TrainingStep", "training_step"]

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
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Loss
    device: torch.device
    leaves: tuple[torch.Tensor, ...]

    def forward(self) -> tuple[Any, torch.Tensor]:
        """Run the model and the loss; return the outputs and the scalar."""
        outputs = self.model(*self.args, **self.kwargs)
        scalar = self.loss(outputs)
        if not _is_loss(scalar):
            raise ProfilingError(
                f"the loss must be a tensor with one element that requires a gradient, found {_describe(scalar)}"
            )
        return outputs, scalar

    def gradients(self, scalar: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Run backward without touching ``.grad`` and without firing hooks that step an optimizer."""
        return torch.autograd.grad(scalar, self.leaves, allow_unused=True)

    def inputs(self) -> list[torch.Tensor]:
        """The tensors of the batch."""
        return tensors((self.args, dict(self.kwargs)))


def training_step(model: torch.nn.Module, inputs: object, loss: Loss | None) -> TrainingStep:
    """Make the step that `model` does on `inputs`.

    Args:
        model: the model.
        inputs: a tuple or list is passed positionally, a mapping by keyword, anything else alone.
        loss: maps the outputs to a scalar; None means an output's ``.loss``, else the sum of every output
            that requires a gradient.

    Raises:
        NotApplicable: the model has no parameter that requires a gradient.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise NotApplicable(
            f"{type(model).__name__} has no parameter that requires a gradient: nothing is kept for backward, "
            "so nothing can be recomputed. Set requires_grad on what is to be trained."
        )
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = inputs
    elif isinstance(inputs, (tuple, list)):
        args = tuple(inputs)
    else:
        args = (inputs,)
    batch = [t for t in tensors((args, dict(kwargs))) if t.requires_grad and t.is_leaf]
    return TrainingStep(
        model=model,
        args=args,
        kwargs=kwargs,
        loss=loss or _default_loss,
        device=trainable[0].device,
        leaves=(*trainable, *batch),
    )


def _default_loss(outputs: Any) -> torch.Tensor:
    """An output's ``.loss``, else the sum of every output that requires a gradient."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    differentiable = [tensor for tensor in tensors(outputs) if tensor.requires_grad]
    if not differentiable:
        raise ProfilingError(
            f"no output of the model requires a gradient (outputs: {_describe(outputs)}). "
            "Give loss=, a function from the outputs to a scalar."
        )
    total = differentiable[0].sum()
    for tensor in differentiable[1:]:
        total = total + tensor.sum()
    return total


def _is_loss(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, requires_grad={value.requires_grad}"
    return f"a {type(value).__name__}"
