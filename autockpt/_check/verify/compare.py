"""Two tensors, and two outcomes of a step, held against one another bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .outcome import Observed
from .report import Difference


def compare(step: int, expected: Sequence[Observed], found: Sequence[Observed]) -> list[Difference]:
    """Return what differs, in the order of `expected`.

    Args:
        step: number of the step, for the differences.
        expected: what the first run made, kept.
        found: what another run made.
    """
    values = {one.key: one.value for one in found}
    differences = []
    for one in expected:
        if one.key not in values:
            differences.append(Difference(kind=one.kind, name=one.name, step=step, what="missing"))
            continue
        difference = _difference(step, one, values.pop(one.key))
        if difference is not None:
            differences.append(difference)
    surplus = [one for one in found if one.key in values]
    return [*differences, *(Difference(kind=one.kind, name=one.name, step=step, what="new") for one in surplus)]


def _difference(step: int, expected: Observed, found: torch.Tensor | None) -> Difference | None:
    """Return in what `found` differs; None if it has the same type, shape and bits. NaN equals NaN of the same bits."""
    kind, name, value = expected
    if value is None or found is None or _type(value) != _type(found):
        if value is None and found is None:
            return None
        return Difference(kind=kind, name=name, step=step, what=f"{_describe(found)} instead of {_describe(value)}")
    one, other = _dense(value), _dense(found)
    if torch.equal(_bits(one), _bits(other)):
        return None
    differs = (_bits(one) != _bits(other)).view(one.numel(), -1).any(1)
    largest = relative = None
    if kind != "generator":
        largest, relative = _distance(one.reshape(-1)[differs], other.reshape(-1)[differs], one)
    return Difference(
        kind=kind,
        name=name,
        step=step,
        elements=one.numel(),
        different_elements=int(differs.sum()),
        largest_difference=largest,
        relative_difference=relative,
    )


def _distance(one: torch.Tensor, other: torch.Tensor, whole: torch.Tensor) -> tuple[float | None, float | None]:
    """Return the largest absolute difference, and the same over the largest absolute value in `whole`."""
    wide = torch.complex128 if one.is_complex() else torch.float64
    largest = float((one.to(wide) - other.to(wide)).abs().max())
    if not math.isfinite(largest):
        return None, None
    scale = float(whole.to(wide).abs().nan_to_num(0, posinf=0).max())
    return largest, largest / scale if scale else None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of `tensor`, flat."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return all that `tensor` holds as one dense tensor on the host."""
    tensor = tensor.detach().cpu()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def _type(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.layout, tensor.shape


def _describe(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" + (
        "" if tensor.layout == torch.strided else f" ({str(tensor.layout).removeprefix('torch.')})"
    )
