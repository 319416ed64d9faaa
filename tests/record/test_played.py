"""What holds on every device: a step on CUDA, as its allocator reports it, gives the profile of the step on the CPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

import autockpt
from autockpt import ProfilingError
from tests.doors import AllocatorTape, Cpu, HostClock
from tests.fuzz.timeless import without_times
from tests.record.played import WORKSPACE_BYTES, WORKSPACES, as_cuda, recording_on, rounded
from tests.record.small import MODELS, ROWS
from tests.record.test_spill import recorded


@pytest.mark.parametrize("name", ROWS)
def test_only_bytes_tell_the_devices_apart(name: str) -> None:
    case = MODELS[name]
    with without_times():
        model, batch = case()
        ours = autockpt.profile(model, batch)
        with as_cuda():
            played = autockpt.profile(model, batch)
    assert played.static.other_bytes == WORKSPACES * WORKSPACE_BYTES
    one, other = recorded(ours), recorded(played)
    sizes, blocks = one["tensors"].pop("bytes"), other["tensors"].pop("bytes")
    del one["static"], other["static"]
    buffers = one.pop("buffer_bytes")
    assert other.pop("buffer_bytes") == {name: rounded(size) for name, size in buffers.items()}
    assert one == other
    seen = {tensor for call in ours.calls for tensor in (*call.outputs, *(each.tensor for each in call.arguments))}
    seen |= {tensor for made in (*ours.functions.makes, *ours.ops.makes) for tensor in made} | {*ours.saves.tensor}
    for tensor, (size, block) in enumerate(zip(sizes, blocks, strict=True)):
        assert block == rounded(size) if tensor in seen else block >= rounded(size)


def test_the_host_gets_ahead_of_the_device_before_a_forward_is_timed() -> None:
    class Clock(HostClock):
        ahead: list[float] = []  # noqa: RUF012

        def get_ahead(self, seconds: float) -> None:
            self.ahead.append(seconds)

    class Ahead(Cpu):
        def clock(self) -> Clock:
            return Clock()

    with recording_on(Ahead()):
        autockpt.profile(torch.nn.Linear(4, 4), torch.randn(2, 4))
    first, *others = Clock.ahead
    assert first == 0 and others and all(seconds > 0 for seconds in others)


def test_an_allocator_that_reports_nothing_is_refused_by_name() -> None:
    with (
        mock.patch.object(AllocatorTape, "_with_marks", _without_allocations(AllocatorTape._with_marks)),
        pytest.raises(ProfilingError, match="the allocator of cpu reported nothing"),
    ):
        autockpt.profile(torch.nn.Linear(4, 4), torch.randn(2, 4))


def _without_allocations(with_marks: Any) -> Any:
    def only_marks(tape: Any, allocations: list[Any]) -> Any:
        own = set(tape._addresses.values())
        return with_marks(tape, [each for each in allocations if each[0] in own and each[1] % 2])

    return only_marks
