"""``torch.cuda.Stream`` and ``Event``: those of torch's extension exist only where it was built with CUDA."""

from __future__ import annotations

import time
from typing import Any

import torch


class Event:
    """Knows when it was recorded; all work before it was done by then."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._at_seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self._at_seconds = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        """Return the milliseconds from this event to the other."""
        return (other._at_seconds - self._at_seconds) * 1e3

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class Stream(torch.Stream):
    """A number, over `torch.Stream`, which the device's guard gives out."""

    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> Any:
        if given:
            return super().__new__(cls, **given)
        index = torch.cuda._utils._get_device_index(device, optional=True)
        return super().__new__(cls, device=f"cuda:{index}", priority=priority)

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        mine = (self.device, self.stream_id)
        return isinstance(other, torch.Stream) and mine == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))
