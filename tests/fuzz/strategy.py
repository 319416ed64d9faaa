"""Draws cases: module trees several levels deep, ways to train them, and what to recompute."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.blocks import BLOCKS
from tests.fuzz.boxes import BOXES
from tests.fuzz.containers import CONTAINERS
from tests.fuzz.hidden import HIDDEN
from tests.fuzz.leaves import LEAVES
from tests.fuzz.oddities import ODDITIES
from tests.fuzz.states import STATES
from tests.fuzz.tree import Case, Choice, How, N

__all__ = ["cases"]

DEPTH = 3
MOST_NODES = 16
WAYS = ("", "blind", "rules", "menus", "names", "", "blind", "rules", "menus", "blind", "rules")
"""To choose what is recomputed: see `Choice`."""

# What is changed in place stands for the errors that a plan by hand must end in, so it must not be rare.
containers = st.sampled_from([*CONTAINERS, *(3 * [kind for kind in CONTAINERS if kind.startswith("Changes")])])
leaves = st.one_of(*(st.sampled_from(sorted(kinds)) for kinds in (LEAVES, BLOCKS, LEAVES, ODDITIES, HIDDEN, STATES)))


def often(false: int) -> st.SearchStrategy[bool]:
    """True once in so many times; shrinks to False."""
    return st.integers(0, false).map(lambda number: number == false)


@st.composite
def trees(draw: st.DrawFn, depth: int, left: list[int]) -> N:
    """Draw a node, and what is inside it while nodes are left."""
    left[0] -= 1
    if depth == 0 or left[0] <= 0 or (depth < DEPTH and not draw(st.integers(0, 2))):
        return N(draw(leaves))
    kind = draw(containers)
    container = CONTAINERS[kind]
    count = draw(st.integers(container.least, container.most))
    return N(kind, *(draw(trees(depth - 1, left)) for _ in range(count)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case. The outermost node is a list, so that there are siblings to make runs of."""
    left = [MOST_NODES]
    parts = [draw(trees(DEPTH - 1, left)) for _ in range(draw(st.integers(1, 4)))]
    return Case(N("List", *parts), draw(hows), draw(choices()))


hows = st.builds(
    How,
    returns=st.sampled_from(["", *BOXES]),
    keep_gradients=st.booleans(),
    input_gradient=st.booleans(),
    flip=often(4),
    off=often(4),
    autocast=often(6),
    offload=often(8),
    swapped=often(8),
    micro=st.sampled_from([1, 1, 1, 2, 3]),
    backwards=st.sampled_from([1, 1, 1, 1, 2]),
    penalty=often(14),
    some=often(8),
    hooks=often(6),
    check=often(1),
)


@st.composite
def choices(draw: st.DrawFn) -> Choice:
    """Draw what is recomputed."""
    way = draw(st.sampled_from(WAYS))
    return Choice(
        picks=draw(st.lists(st.integers(0, 400), min_size=1, max_size=5).map(tuple)),
        fill=draw(st.booleans()),
        blind=way == "blind",
        unnamed=draw(often(3)),
        units="" if way == "blind" else way,
        dice=draw(st.integers(0, 999)),
        cuts=draw(often(2)),
    )
