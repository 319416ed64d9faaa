"""The boundary bytes of every run in a row of siblings, in one pass.

row         a ──x──▶ b ──y──▶ c        x comes into the runs that begin at b or c, where b or c is given it,
                └───────x─────┘        but into none that begins at a, which returned it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ..index.profile_index import Index, Ints


def entering_bytes(index: Index, row: Sequence[int]) -> Iterator[Ints]:
    """Yield, for each last place of a run in a row, the boundary bytes of the runs from each first place to it.

    Goes from left to right. The same array is yielded each time; past the last place it is 0. O(arguments), each times
    the places that it changes.
    """
    place_of: dict[int, int] = {}
    # By tensor: the first places of the runs that it comes into, as intervals (first, last) that do not overlap.
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    into = np.zeros(len(row), np.int64)
    for last, node in enumerate(row):
        for argument in index.nodes[node].arguments:
            tensor = argument.tensor
            if tensor < 0:
                continue
            # It comes from outside only if the run begins after every call that returned it.
            low = max((place_of.get(source, -1) for source in argument.sources), default=-1) + 1
            own, begin, stop = spans[tensor], low, last + 1
            while own and own[-1][1] >= low:
                first, until = own.pop()
                into[until + 1 : stop] += index.bytes_of[tensor]
                begin, stop = min(begin, first), first
            into[min(low, stop) : stop] += index.bytes_of[tensor]
            own.append((begin, last))
        place_of[node] = last
        yield into
