"""What a replay does not run: which torch functions are kept, and which are skipped.

functions     [c_attn] view [sdpa] [c_proj] [ln] [c_fc] gelu [down]      [ ] does not run again
                skip         skip    keep    keep  keep        skip      keep: the rest of the replay reads its result
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from .._index.profile_index import Index, Members

Units = tuple[int, ...]


def kept_and_skipped(index: Index, members: Members, idle: Collection[int]) -> tuple[Units, Units]:
    """Split the `idle` torch functions of a run, which do not run again, into kept and skipped ones.

    Functions that the replay never reaches and that save nothing are left out: to name them would cost host time for
    no benefit.
    """
    saves, inside = index.profile.saves, index.saves_of(members)
    filled: dict[int, set[int]] = defaultdict(set)  # by node, those of its saved tensors that the replay makes
    end = 0  # tick at which the replay ends: its last slot is filled
    for i in inside:
        node = index.save_nodes[i]
        if node not in idle or saves.tensor[i] in index.reads(node):
            end = max(end, saves.pack[i])
            filled[node].add(saves.tensor[i])
    savers = {index.save_nodes[i] for i in inside}
    left = {f for f in idle if index.nodes[f].enter <= end or f in savers}
    readers: dict[int, set[int]] = defaultdict(set)  # by tensor, what needs it in the replay
    wanted = {node: tensors for node, tensors in filled.items() if not index.is_function(node)}
    for f in index.within(members, index.functions):
        if index.nodes[f].enter <= end and not index.is_free(f):  # a view of what is hollow is hollow
            wanted[f] = filled[f] if f in left else set(index.reads(f))
    for node, tensors in wanted.items():
        for tensor in tensors:
            readers[tensor].add(node)
    left.discard(_ends_in(index, inside, idle, end, filled))
    kept = {f for f in left if any(readers[tensor] - {f} for tensor in index.makes(f))}
    return tuple(sorted(kept)), tuple(sorted(left - kept))


def _ends_in(index: Index, inside: list[int], idle: Collection[int], end: int, filled: Mapping[int, set[int]]) -> int:
    """Find the idle function in which the replay ends, before that function has done anything; -1 if there is none.

    Frames may also fill slots of tensors that are older than the step, and cast weights anew for each function. So the
    replay does not end there if such an older tensor is saved later, or if the function saves a cast.
    """
    saves, nodes = index.profile.saves, index.save_nodes
    function = next((nodes[i] for i in inside if saves.pack[i] == end), -1)
    if function not in idle or not filled[function].issuperset(index.reads(function)):
        return -1
    last = max(saves.pack[i] for i in inside if nodes[i] == function)
    later = any(saves.tensor[i] < 0 and saves.pack[i] > last for i in inside)
    cast = any(nodes[i] == function and saves.tensor[i] in index.casts for i in inside)
    return -1 if later or cast or index.begins(function, last) else function
