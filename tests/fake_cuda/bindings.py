"""What a torch with CUDA has in its extension: with these torch's own Python runs unchanged over the fake device."""

from __future__ import annotations

import atexit
import sys
import types
from typing import Any

from . import device as fake


def install(devices: int = 1) -> None:
    """Load the device, and let ``torch.cuda`` find it; once it is there nothing happens.

    To be called before the first backward, in which autograd counts devices, and before transformers is imported, which
    remembers what it found.

    Args:
        devices: How many there are, 1 or 2.

    Raises:
        NoFakeDevice: It cannot be had here.
        RuntimeError: transformers is there already, or the compiler refuses the source.
    """
    if fake.installed():
        return
    if "transformers" in sys.modules:
        raise RuntimeError("install the fake device before transformers is imported, which remembers what it found")
    if devices not in range(1, fake.MOST_DEVICES + 1):
        raise ValueError(f"there can be 1 to {fake.MOST_DEVICES} fake devices, not {devices}")
    fake.load()
    fake.call("devices", devices)
    fake.set_options(fake.Options())
    from . import storages

    _fill_extension(devices)
    _fill_module(devices)
    storages.install()
    atexit.register(_end_last_backward)


def _end_last_backward() -> None:
    """Let autograd's thread let go of the last backward before the interpreter ends.

    It holds that until its next one, with a context of Python's; ended after the interpreter, the process aborts
    ("terminate called without an active exception"). A GPU's would too, where the last step is as short. This backward
    leaves it nothing of Python's: no context, which torch's own ``backward`` adds, and no results.
    """
    import torch

    number = torch.zeros((), device="cuda", requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    engine.run_backward((number.view_as(number),), (torch.ones_like(number),), False, False, (), accumulate_grad=True)


def _fill_extension(devices: int) -> None:
    """Give ``torch._C`` what it lacks."""
    import torch

    found = {**_of_devices(devices), **_of_memory(), **_of_pinned_memory(), **_of_streams(), "_has_cuda": True}
    for name, value in found.items():
        setattr(torch._C, name, value)


def _of_devices(devices: int) -> dict[str, Any]:
    return {
        "_cuda_getDeviceCount": lambda: devices,
        "_cuda_getDevice": lambda: fake.call("exchange_device", -1),
        "_cuda_setDevice": _exchange_device,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_cuda_synchronize": lambda: None,
        "_cuda_sleep": lambda cycles: None,
        "_cuda_getArchFlags": lambda: "sm_80",
        "_cuda_set_sync_debug_mode": lambda mode: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
    }


def _exchange_device(index: int) -> int:
    before = fake.call("exchange_device", index)
    if before == -2:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {index}")
    return before


def _of_memory() -> dict[str, Any]:
    total = fake.TOTAL_BYTES
    return {
        "_cuda_emptyCache": lambda: fake.call("empty_cache") and None,
        "_cuda_memoryStats": fake.memory_stats,
        "_cuda_resetPeakMemoryStats": lambda device: fake.call("reset_peaks", device) and None,
        "_cuda_resetAccumulatedMemoryStats": lambda device: fake.call("reset_accumulated", device) and None,
        "_cuda_setMemoryFraction": lambda fraction, device: fake.call("limit", device, int(fraction * total)) and None,
        "_cuda_getMemoryFraction": lambda device: fake.call("limit_of", device) / total,
        "_cuda_getAllocatorBackend": fake.backend,
    }


def _of_pinned_memory() -> dict[str, Any]:
    return {
        "_cuda_clearCublasWorkspaces": lambda: fake.call("forget_workspaces") and None,
        "_host_emptyCache": lambda: fake.call("empty_host_cache") and None,
        "_cuda_hostMemoryStats": fake.host_memory_stats,
        "_cuda_resetPeakHostMemoryStats": lambda: fake.call("reset_host_peaks") and None,
        "_cuda_resetAccumulatedHostMemoryStats": lambda: fake.call("reset_accumulated_host") and None,
    }


def _of_streams() -> dict[str, Any]:
    kind = 1  # c10::DeviceType::CUDA
    return {
        "_cuda_getCurrentRawStream": lambda device: fake.call("stream", device),
        "_cuda_getCurrentStream": lambda device: (fake.call("stream", device), device, kind),
        "_cuda_getDefaultStream": lambda device: (0, device, kind),
        "_cuda_setStream": _set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: bool(fake.call("capturing")),
    }


def _set_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
    fake.call("set_stream", device_index, stream_id)


def _fill_module(devices: int) -> None:
    """Give ``torch.cuda`` what it took from ``torch._C`` as it was imported, or defines once it is initialised."""
    import torch

    from .streams import Event, Stream

    cuda: Any = torch.cuda
    cuda._initialized, cuda._cached_device_count = True, devices
    cuda._exchange_device = _exchange_device
    cuda._maybe_exchange_device = lambda index: _exchange_device(index)  # another function: Dynamo tells them apart
    cuda._get_device_properties = lambda index: _PROPERTIES
    cuda._cudart = types.SimpleNamespace(cudaMemGetInfo=_mem_get_info)
    cuda.graphs._cuda_isCurrentStreamCapturing = torch._C._cuda_isCurrentStreamCapturing
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.Stream = cuda.streams.Stream = Stream
    cuda.Event = cuda.streams.Event = Event
    cuda.default_generators = tuple(torch.ops.fake_cuda.generator(index) for index in range(devices))


_PROPERTIES = types.SimpleNamespace(
    name=fake.NAME,
    total_memory=fake.TOTAL_BYTES,
    major=8,
    minor=0,
    multi_processor_count=108,
    clock_rate=1_410_000,
    gcnArchName="",
    is_integrated=False,
    L2_cache_size=40 << 20,
    warp_size=32,
)


def _mem_get_info(index: int) -> tuple[int, int]:
    reserved: int = fake.memory_stats(index)["reserved_bytes"]["all"]["current"]
    return fake.TOTAL_BYTES - reserved, fake.TOTAL_BYTES
