"""What a step saves, made by hand: of a model like GPT-2, one layer after the other."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["saved_by_layers", "unique_bytes"]


def saved_by_layers(device: str, layers: int = 6, tokens: int = 256, width: int = 96) -> list[Tensor]:
    """Make what such a model saves: views of one projection, transposed and repeated ones, scalars, large ones."""
    torch.manual_seed(0)
    saved: list[Tensor] = []
    for _ in range(layers):
        hidden = torch.randn(2, tokens, width, device=device)
        fused = torch.randn(2, tokens, 3 * width, device=device)
        heads = [part.view(2, tokens, 4, width // 4).transpose(1, 2) for part in fused.chunk(3, -1)]
        out = torch.randn(2, tokens, width, device=device).bfloat16()
        wide = torch.randn(2, tokens, 4 * width, device=device)
        saved += [hidden, hidden.view(-1, width), hidden.mean(-1), hidden.mean(-1, keepdim=True), *heads]
        saved += [out, out.view(2, tokens, 4, width // 4).transpose(1, 2), wide, wide.view(-1, 4 * width).t()]
        saved += [hidden.sum(), wide > 0, hidden[:, :1].expand(2, tokens, width)]
    return saved


def unique_bytes(saved: list[Tensor]) -> int:
    """Bytes that lie in some of the tensors, each once."""
    marks: dict[int, Tensor] = {}
    for tensor in saved:
        storage = tensor.untyped_storage()
        mark = marks.setdefault(storage._cdata, torch.zeros(storage.nbytes(), dtype=torch.bool))
        shape, stride = (*tensor.shape, tensor.itemsize), (*(each * tensor.itemsize for each in tensor.stride()), 1)
        mark.as_strided(shape, stride, tensor.storage_offset() * tensor.itemsize).fill_(True)
    return sum(int(mark.sum()) for mark in marks.values())
