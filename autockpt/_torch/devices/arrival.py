"""A tensor of a device on its way to the host, which nobody waits for."""

from __future__ import annotations

from typing import Any

import torch


class Arrival:
    """A small tensor that is copied to the host behind all that its device was asked for until now.

    Where no memory of the host can be pinned, or the device is not CUDA, the copy begins only as it is read.

    Args:
        tensor: the tensor, on the current device.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            try:
                there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            except RuntimeError:  # the driver refuses
                return
            stream = torch.cuda.current_stream(tensor.device)
            with torch.cuda.stream(stream):
                self._tensor = there.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(stream)

    def read(self) -> list[Any]:
        """Return the values. The host waits if the device has not come so far."""
        if self._event is not None:
            self._event.synchronize()
        values: list[Any] = self._tensor.tolist()
        return values
