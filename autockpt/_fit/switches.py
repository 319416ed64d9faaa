"""What the switches of other libraries would do to a recorded step, as plans on its profile. No torch.

every block        ▓|▓|▓|▓|▓|▓      ``activation_checkpointing_enable()``, ``--recompute-granularity full``
every second       ▓|░|▓|░|▓|░      torchtitan's ``selective_ac_option = "2"``
attention core     ░▒░|░▒░|░▒░      Megatron's ``--recompute-granularity selective``: scores, softmax, their product
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .._choose.candidates import Candidates
from .._choose.index.products import multiplies
from .._choose.index.profile_index import Index, Members
from .._choose.replay_cost.effects import replay_of
from .._data.profile import Profile
from ..solvers import simulate
from ..solvers.plans.blocks import layers

FELL = 0.005
"""A peak is called lower if it is below the plain one by more than this share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch and its effect, predicted.

    Attributes:
        name: what it does, in words.
        peak_bytes: of the whole step.
        recompute_seconds: per step.
        plain_seconds: those of the plain step.
        segments: how many calls it recomputes.
    """

    name: str
    peak_bytes: int
    recompute_seconds: float
    plain_seconds: float
    segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What a switch recomputes at one place: members, but for idle torch functions in them."""

    members: Members
    idle: Sequence[int] = ()


def switches(profile: Profile) -> Iterator[Switch]:
    """Yield what each switch would do, for those that find something in the recorded step; O(problem) each."""
    index = Index(profile)
    blocks = [_Run(members=(block,)) for block in layers(Candidates.of(index, ()).problem.calls)]
    if len(blocks) > 1:
        yield _switch("every block", index, blocks)
    if len(blocks) > 2:
        yield _switch("every 2nd block", index, blocks[::2])
    cores = list(_cores(index))
    if cores:
        yield _switch("attention core", index, cores)


def _switch(name: str, index: Index, runs: Sequence[_Run]) -> Switch:
    able = (replay_of(index, run.members, run.idle) for run in runs if not index.reason(run.members))
    replays = [replay for replay in able if replay is not None]
    planned = Candidates.of(index, replays)
    return Switch(
        name=name,
        peak_bytes=simulate(planned.problem, range(len(replays))).peak_bytes,
        recompute_seconds=planned.all_seconds,
        plain_seconds=planned.plain_seconds,
        segments=len(replays),
    )


def _cores(index: Index) -> Iterator[_Run]:
    """Yield the core of each attention: one fused function, or all from the product before a softmax to that after."""
    functions = index.profile.functions
    for call in index.call_nodes:
        own = index.children[call]
        names = [functions.name[index.nodes[n].function] if index.is_function(n) else "" for n in own]
        fused = [i for i, name in enumerate(names) if "attention" in name]
        yield from (_core(index, call, i, i) for i in fused)
        products = [i for i, name in enumerate(names) if name and multiplies(name)]
        for place, name in enumerate(names if not fused else ()):
            if "softmax" in name:
                first = max((i for i in products if i < place), default=place)
                last = min((i for i in products if i > place), default=place)
                if first < place < last:
                    yield _core(index, call, first, last)


def _core(index: Index, call: int, first: int, last: int) -> _Run:
    """Return some of a call's own functions, by place. What comes into them is recorded where it calls modules, too."""
    own = index.children[call]
    if not all(map(index.is_function, own)):
        return _Run(members=tuple(own[first : last + 1]))
    return _Run(members=(call,), idle=[n for n in (*own[:first], *own[last + 1 :]) if not index.is_free(n)])
