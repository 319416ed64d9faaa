"""Every private torch name that autockpt uses, each behind one small function.

`tests/run/frames/test_torch_private.py` tests each of them, so a new torch version fails there first.
"""

from __future__ import annotations

from .frames import (
    Hooks,
    any_autocast_enabled,
    container_handlers,
    default_generator,
    dispatch_modes,
    end_modes,
    flags,
    foreign_checkpoint_active,
    function_modes,
    geometry,
    global_hooks,
    graph_is_alive,
    held_elsewhere,
    is_tracing,
    keeping_backward,
    keeps_graph,
    modes_on,
    never_compiled,
    of_the_user,
    outer_hooks,
    parametrizations_are_cached,
    parts,
    plain_torch_function,
    pop_function_mode,
    pop_hooks,
    preserved_version,
    push_function_mode,
    push_hooks,
    set_dispatch_modes,
    set_flags,
    set_function_modes,
    set_grad_enabled,
    storage_key,
    suspend_function_mode,
    tensor_without_storage,
    transforms_active,
    tries_kernels,
    try_kernels,
    version,
    versions,
)
from .nodes import NodeCount, node_number, reads_late_writes, running_backward, running_node, saving_node
from .optimizers import (
    bare_step,
    blank_optimizer,
    foreach_by_default,
    is_item,
    refuse_pointers,
)
from .profiler import (
    ALONE,
    AllocationEvent,
    MemoryProfiler,
    make_room,
    no_profiler_left,
    our_profiler_is_running,
    profiler_is_running,
    start_memory_profiler,
    stop_memory_profiler,
    yields_to_others,
)
from .recorder import (
    FakeTensor,
    active_data_parallel,
    after_backward,
    cached_weights,
    empty_pinned_cache,
    fake_mode_of,
    forget_empty_hooks,
    forget_workspaces,
    has_reentrant_checkpoint,
    is_compiled,
    load_compiler,
    new_fake_mode,
    no_torch_functions,
    outside_modes,
    quiet_fake_tensors,
    sleep_on,
)
from .streams import StreamNumbers, captures_graph, current_stream, stream_of
from .yielding import yielding_hooks
