"""Bare storages on the device: copying them needs code that is compiled with CUDA only; copying tensors does not."""

from __future__ import annotations

from typing import Any

import torch


def install() -> None:
    """Let a storage be copied to the device, on it and from it."""
    kind: Any = torch.UntypedStorage
    kind.clone = lambda self: _copied(self, self.device)
    kind.cpu = lambda self: self if self.device.type == "cpu" else _copied(self, torch.device("cpu"))
    kind.cuda = lambda self, device=None, non_blocking=False: _moved(self, "cuda" if device is None else device)
    kind.to = lambda self, *, device, non_blocking=False: _moved(self, device)


def _moved(storage: Any, device: Any) -> Any:
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return storage if storage.device == device else _copied(storage, device)


def _copied(storage: Any, device: torch.device) -> Any:
    new = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device).untyped_storage()
    _as_tensor(new).copy_(_as_tensor(storage))
    return new


def _as_tensor(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
