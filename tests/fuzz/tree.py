"""A drawn case as data: prints as the code that makes it again, so a failure becomes a test by copying a line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from autockpt import Segment
from tests.fuzz.blocks import BLOCKS
from tests.fuzz.boxes import BOXES
from tests.fuzz.containers import CONTAINERS
from tests.fuzz.hidden import HIDDEN
from tests.fuzz.leaves import LEAVES, WIDTH
from tests.fuzz.oddities import ODDITIES
from tests.fuzz.states import STATES

__all__ = ["LEAF_KINDS", "Case", "Choice", "How", "N", "build"]

LEAF_KINDS = {**LEAVES, **BLOCKS, **ODDITIES, **HIDDEN, **STATES}


@dataclass(frozen=True, init=False, repr=False)
class N:
    """One node of a model: what it is, and what is inside it."""

    kind: str
    children: tuple[N, ...]

    def __init__(self, kind: str, *children: N) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "children", children)

    def __repr__(self) -> str:
        return f"N({', '.join([repr(self.kind), *map(repr, self.children)])})"


def kinds_in(tree: N) -> set[str]:
    """Return the kinds of a node and of all inside it."""
    return {tree.kind}.union(*map(kinds_in, tree.children))


class _Brief:
    """Prints what differs from the defaults."""

    def __repr__(self) -> str:
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed)})"


@dataclass(frozen=True, repr=False)
class How(_Brief):
    """How the model is trained.

    Attributes:
        returns: the box that it returns its results in; empty for a tensor.
        keep_gradients: whether the second step adds to the first's gradients.
        input_gradient: whether the batch wants a gradient.
        flip: whether every module's training flag is the other one in backward.
        off: whether the plan is off while backward runs.
        autocast: whether the whole model runs under autocast.
        offload: whether saved tensors go through the hooks of `save_on_cpu`.
        swapped: whether it runs with other parameters, through `functional_call`.
        micro: forwards before the one backward.
        backwards: how often backward runs through the same graph.
        penalty: whether the gradient's size is part of the loss.
        some: whether gradients are taken for a part of the parameters only.
        hooks: whether hooks are on every linear layer while forward runs, and off in backward.
        check: whether every replay is compared with its forward.
    """

    returns: str = ""
    keep_gradients: bool = False
    input_gradient: bool = False
    flip: bool = False
    off: bool = False
    autocast: bool = False
    offload: bool = False
    swapped: bool = False
    micro: int = 1
    backwards: int = 1
    penalty: bool = False
    some: bool = False
    hooks: bool = False
    check: bool = False


@dataclass(frozen=True, repr=False)
class Choice(_Brief):
    """Which of the calls that there are become segments; numbers, since they are drawn before any is known.

    Attributes:
        picks: which candidates, the first that overlaps none taken before.
        fill: whether everything that is left is taken too.
        blind: whether calls are taken that are refused, or are no candidates.
        unnamed: whether parents and buffers are left for `install` to find, as in a plan by hand.
        units: whether units are kept or skipped: entries of ``menus``, what their ``rules`` allow, or any ``names``;
            empty for whatever candidates there are.
        dice: what is drawn of units, of cuts, of inner segments, and the seconds that fill menus.
        cuts: whether replays of runs go in parts, to any depth, and leave calls inside to replays of their own.
    """

    picks: tuple[int, ...] = (0,)
    fill: bool = False
    blind: bool = False
    unnamed: bool = False
    units: str = ""
    dice: int = 0
    cuts: bool = False


@dataclass(frozen=True, repr=False)
class Case(_Brief):
    """A model, how it is trained, and what is recomputed: either chosen, or the very calls, with units and cuts."""

    tree: N
    how: How = How()
    choice: Choice = Choice()
    calls: tuple[tuple[str, ...], ...] | None = None
    keep: tuple[tuple[str, ...], ...] = ()
    skip: tuple[tuple[str, ...], ...] = ()
    cuts: tuple[tuple[int, ...], ...] = ()
    inner: tuple[tuple[Segment, ...], ...] = ()

    def __repr__(self) -> str:
        units = f", keep={self.keep!r}, skip={self.skip!r}" if self.keep or self.skip else ""
        units += f", cuts={self.cuts!r}" if self.cuts else ""
        units += f", inner={self.inner!r}" if self.inner else ""
        return f"Case({self.tree!r}, {self.how!r}, {self.choice!r}, {self.calls!r}{units})"


class Root(nn.Module):
    """The whole model: a layer before the tree, since a leaf must not be changed in place, and one behind it."""

    def __init__(self, tree: nn.Module, returns: str) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.tree = tree
        self.head = nn.Linear(WIDTH, WIDTH)
        self.returns = returns

    def forward(self, x: Tensor) -> Any:
        hidden = self.tree(self.stem(x))
        out = self.head(hidden.float())
        return BOXES[self.returns](out, hidden) if self.returns else out


def build(case: Case) -> nn.Module:
    """Make the model: always the same weights for the same case."""
    torch.manual_seed(0)
    return Root(_module(case.tree), case.how.returns)


def _module(node: N) -> nn.Module:
    if node.kind in LEAF_KINDS:
        return LEAF_KINDS[node.kind]()
    return CONTAINERS[node.kind].make(*map(_module, node.children))
