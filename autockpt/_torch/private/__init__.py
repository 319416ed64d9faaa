"""Every private torch name that autockpt uses, each behind one small function.

`tests/frames/test_torch_private.py` tests each of them, and `tests/world` those for ranks that are not there, so a new
torch version fails there first.

compiling.py   joint graphs of compiled steps: only who compiles imports it
inductor.py    what inductor generates of them: only who compiles by it imports it
flags.py       flags that decide which kernels run, and in which precision
frames.py      what frames need
modes.py       function modes, dispatch modes and saved-tensors hooks of this thread
nodes.py       nodes of autograd, and how many a forward makes
optimizers.py  an optimizer step without its hooks
profiler.py    the memory profiler, of which a process has one
recorder.py    autograd's state, fake tensors, caches
streams.py     the current stream of a device
wrappers.py    tensors that have their memory in tensors inside them
yielding.py    saved-tensors hooks that are taken away while code runs that allows none

ranks/   what lies on several ranks
"""

from __future__ import annotations

from .flags import flags, set_flags
from .frames import (
    any_autocast_enabled,
    container_handlers,
    default_generator,
    foreign_checkpoint_active,
    geometry,
    global_hooks,
    graph_is_alive,
    held_alone,
    held_elsewhere,
    here,
    inside_checkpoint,
    is_tracing,
    keeping_backward,
    keeps_graph,
    local,
    never_compiled,
    parametrizations_are_cached,
    parts,
    plain_torch_function,
    preserved_version,
    recomputed_function,
    runs_plain,
    set_grad_enabled,
    sizes,
    storage_key,
    tensor_without_storage,
    transforms_active,
    tries_kernels,
    try_kernels,
    version,
    version_counter,
    versions,
)
from .modes import (
    Hooks,
    any_dispatch_mode,
    any_function_mode,
    dispatch_modes,
    end_modes,
    function_modes,
    modes_on,
    of_the_user,
    only_move,
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
    cast_of,
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
    end_our_profiler,
    foreign_profiler,
    measuring,
    no_profiler_left,
    our_profiler_is_running,
    profiler_is_running,
    start_memory_profiler,
    stop_memory_profiler,
    yields_to_others,
)
from .ranks.gathering import gather, gather_bytes, given_to_unit, is_coming, is_here, let_go
from .ranks.sharded import (
    any_units,
    asks_for_shapes,
    buffers_of,
    default_store,
    gather_parts,
    gathers_by_itself,
    gradients_arriving,
    group_of,
    has_rebuilt_buckets,
    is_distributed,
    is_distributed_at_times,
    is_offloaded,
    kept_by_stage,
    lies_on_several,
    like,
    mesh_ranks,
    meshes_of_layers,
    move,
    name_of_group,
    own_rank,
    parameters_of,
    process_group,
    ranks_in,
    stages,
    unit_of,
    unit_ranks,
    unit_switches,
    wait_for_collectives,
    waiting_gradients,
)
from .ranks.waits import outputs_awaiting, unwatch_waits, watch_waits
from .ranks.world import (
    FAKE,
    close_group,
    group_backend,
    group_size,
    open_fake_group,
    replace_tensors,
    shard,
    told_of_resizes,
)
from .recorder import (
    COMPILED_CALL,
    FakeTensor,
    active_data_parallel,
    after_backward,
    as_if_running,
    cached_weights,
    compiled_around,
    device_asked,
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
    plain_subclasses,
    quiet_fake_tensors,
    sleep_on,
)
from .streams import StreamNumbers, captures_graph, current_stream, stream_of
from .wrappers import apart, inside
from .yielding import yielding, yielding_hooks
