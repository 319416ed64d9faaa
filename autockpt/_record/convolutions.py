"""What the backward of a convolution takes besides its results: kernels choose buffers that no graph tells.

So each convolution of a step is tried once by itself, on zeros of the same sizes and strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .. import _torch_private as private
from .tape import AllocatorTape


class Layout(NamedTuple):
    """Sizes and strides of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Describe a tensor."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def zeros(self, device: torch.device) -> torch.Tensor:
        """Make such a tensor."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device).zero_()


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One convolution, as far as its kernels can tell.

    Attributes:
        input: what it read.
        weight: its kernel.
        bias_shape: empty where there is none.
        options: stride, padding, dilation, whether it is transposed, output padding, groups.
        wanted: whether gradients of input, weight and bias are.
    """

    input: Layout
    weight: Layout
    bias_shape: tuple[int, ...]
    options: tuple[Any, ...]
    wanted: tuple[bool, ...]


def convolution_of(node: Any, saved: Sequence[Layout]) -> Convolution | None:
    """Describe the convolution behind an autograd node; None where the node is of something else.

    Args:
        node: the node.
        saved: the tensors that it saved, input and kernel first.
    """
    if type(node).__name__ != "ConvolutionBackward0" or len(saved) < 2:
        return None
    bias_shape, options = private.convolution_options(node)
    wanted = tuple(target is not None for target, _ in node.next_functions)
    return Convolution(input=saved[0], weight=saved[1], bias_shape=bias_shape, options=options, wanted=wanted)


def transient_bytes(convolution: Convolution, device: torch.device) -> int:
    """Try a convolution's backward; return how far its highest level stands above that of its results."""
    given, weight = convolution.input.zeros(device), convolution.weight.zeros(device)
    with torch.no_grad():
        bias = (
            torch.zeros(convolution.bias_shape, dtype=weight.dtype, device=device) if convolution.bias_shape else None
        )
        gradient = torch.zeros_like(torch.ops.aten.convolution(given, weight, bias, *convolution.options))
        tape = AllocatorTape(device)
        with tape:
            results = torch.ops.aten.convolution_backward(
                gradient, given, weight, convolution.bias_shape or None, *convolution.options, convolution.wanted
            )
        del results
    level = highest = 0
    for event in tape.events():
        level += event.bytes if event.kind == "alloc" else -event.bytes
        highest = max(highest, level)
    return highest - level
