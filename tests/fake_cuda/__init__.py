"""A fake CUDA device: `bindings.install` makes ``torch.cuda`` work, with the host's memory, over a torch without it.

It is there for what differs between a CPU and a GPU in *bookkeeping*, not in speed. To run tests on it::

    make test-device
    python -m pytest -p tests.fake_cuda.plugin --device fake-cuda tests/device

It imitates

| as on a GPU | how |
| --- | --- |
| dispatch key, device guard, autograd's thread of its own | registers as CUDA; every operator is the CPU's kernel |
| allocator | torch's rules: 512 bytes, segments, splits, a pool for each stream; reports to the profiler |
| statistics | ``torch.cuda``'s own Python over real figures: small and large pool, inactive splits, retries |
| out of memory | `torch.OutOfMemoryError` beyond `set_per_process_memory_fraction`, after the cache was given back |
| uninitialised memory | junk, other junk each time; filled where deterministic algorithms are on |
| cuBLAS's workspace | taken by the first product in a thread, and kept: in the user's and in autograd's |
| cuBLASLt's workspace | the same for products with a bias, `Options.bias_workspace_bytes` |
| workspaces of convolutions | taken and given back in each, `Options.scratch_bytes` |
| generator | Philox's state (seed, offset), sixteen bytes; apart from the CPU's; one for each device |
| attention | flash (half precision), memory-efficient (else), with states of a generator that nothing writes |
| pinned memory | blocks of powers of two, never given back but by ``torch._C._host_emptyCache()``; may be full |
| streams | numbers: a pool of blocks for each, and backward runs on those of the forward |
| cudaMallocAsync | `Options.backend`: nothing is reported to the profiler |
| a capturing stream | `Options.capturing` says that there is one |
| two devices | current device, generators, streams and memory of each; mixing them raises |

It cannot show: work that runs behind the host (and so no race, no wrong use of streams, no seconds), kernels that do
not repeat themselves, bits of CUDA's kernels, memory that kernels take inside (but the three workspaces), cuDNN and its
plans, captured graphs, NCCL, `torch.compile`, dropout inside attention, expandable segments, snapshots of the
allocator, driver and context. Nothing that ran on it is a result of a GPU.

    __init__.py    this
    build.py       compiles device/*.h into one library, once
    device.py      the loaded library: options, figures, which operators ran where
    bindings.py    what a torch with CUDA has in its extension: `install`
    streams.py     torch.cuda.Stream and Event
    storages.py    bare storages on the device
    plugin.py      the pytest plugin, after whose tests the device is as it was at first
    device/        the device, in C++: open fake_cuda.cpp first

Once installed it stays until the process ends, and everything in it takes the device to be there.
"""
