"""Every private torch name that autockpt uses, each behind one small function.

`tests/frames/test_torch_private.py` tests each of them, so a new torch version fails there first.
"""

from __future__ import annotations

from .frames import (
    any_autocast_enabled,
    container_handlers,
    default_generator,
    flags,
    foreign_checkpoint_active,
    geometry,
    global_hooks,
    graph_is_alive,
    held_elsewhere,
    is_tracing,
    keeping_backward,
    keeps_graph,
    never_compiled,
    parametrizations_are_cached,
    parts,
    plain_torch_function,
    preserved_version,
    set_flags,
    set_grad_enabled,
    storage_key,
    tensor_without_storage,
    transforms_active,
    tries_kernels,
    try_kernels,
    version,
    versions,
)
from .modes import (
    Hooks,
    dispatch_modes,
    end_modes,
    function_modes,
    modes_on,
    of_the_user,
    outer_hooks,
    pop_function_mode,
    pop_hooks,
    push_function_mode,
    push_hooks,
    set_dispatch_modes,
    set_function_modes,
    suspend_function_mode,
)
from .nodes import (
    NodeCount,
    node_number,
    python_nodes,
    reads_late_writes,
    running_backward,
    running_node,
    saving_node,
)
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
    foreign_profiler,
    make_room,
    measuring,
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
from .sharded import (
    buffers_of,
    default_store,
    gather,
    is_distributed,
    is_offloaded,
    let_go,
    lies_on_several,
    move,
    own_rank,
    parameters_of,
    process_group,
    ranks_in,
    unit_of,
    unit_ranks,
    unit_switches,
    waiting_gradients,
)
from .streams import StreamNumbers, captures_graph, current_stream, stream_of
from .yielding import yielding_hooks
