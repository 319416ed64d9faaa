"""What comes into the runs of a row of siblings from outside: the bytes of all their boundaries, in one pass.

row         a ──x──▶ b ──y──▶ c        x comes into the runs that begin at b or c, where b or c is given it,
                └───────x─────┘        but into none that begins at a, which returned it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ..._index.profile_index import Index, Ints


def entering_bytes(index: Index, row: Sequence[int]) -> Iterator[Ints]:
    """Yield for each place of a row the bytes of the boundary of the run that begins at each place and ends there.

    From left to right, and always the same array: what is past the end is 0. O(arguments), and what they span.
    """
    place_of: dict[int, int] = {}
    # By tensor, the places at which runs begin that it comes into: apart from one another, first and last.
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    into = np.zeros(len(row), np.int64)
    for last, node in enumerate(row):
        for argument in index.nodes[node].arguments:
            tensor = argument.tensor
            if tensor < 0:
                continue
            # It comes from outside until a call that returned it is a member too.
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
