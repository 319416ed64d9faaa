"""Whose bytes each storage of a recorded step is: a row for each loop that was ever told of wrongly.

A row writes down a step as the tape has it:

    +a  -a      storage a is allocated, and freed
    [a,b]       a marker names storages a and b, as where a call is given them, or a gradient is there
    F  F:b      a forward begins; a later one, which is given b
    E  E:s      a backward is over; an optimizer's step, whose state is s
    C:w         an operator reads w, a cast of a parameter that autocast has cached
    A           the recorder begins work of its own, up to the next marker
    U:c         c is a copy of a saved tensor, which backward reads

What stood before is written as `name:held by`, with `-` where it goes. Sizes are 1024 bytes, unless a row says another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doors import (
    AllocatorEvent,
    Attributed,
    HeldBy,
    Mark,
    MarkKind,
    Stood,
    Written,
    attribute,
    events_of,
)

HOLDERS: dict[str, HeldBy] = {
    "model": "model",
    "gradient": "gradient",
    "object": "model's objects",
    "graph": "graph",
    "loop": "loop",
}
KINDS: dict[str, MarkKind] = {
    "F": "enter",
    "E": "backward_end",
    "C": "start",
    "A": "aside",
    "U": "unpack",
    "[": "pack",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A loop, and whose its storages are: those that stood, then those that were allocated, in order."""

    loop: str
    stood: str = ""
    tape: str
    whose: str
    elsewhere: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    repeats: bool = True
    bucket_bytes: int = 0
    views: bool = False
    threads: bool = False
    put_back: bool = False

    def written(self) -> Written:
        """What is written down of it."""
        return written(
            self.tape.split(),
            self.stood.split(),
            self.sizes,
            elsewhere=frozenset(map(key, self.elsewhere.split())),
            repeats=self.repeats,
            bucket_bytes=self.bucket_bytes,
            views=self.views,
            threads=self.threads,
            put_back=self.put_back,
        )


def key(name: str) -> int:
    """A storage's key; that of a name in capitals is what only a graph holds."""
    number = int.from_bytes(name.encode(), "big")
    return -number if name.isupper() else number


def written(tape: list[str], stood: list[str], sizes: Mapping[str, int], **more: Any) -> Written:
    events: list[AllocatorEvent] = []
    marks: dict[int, Mark] = {}
    at: dict[str, dict[int, tuple[int, ...]]] = {kind: {} for kind in KINDS}
    for word in tape:
        name = word[1:]
        if word[0] in "+-":
            events.append(AllocatorEvent("alloc" if word[0] == "+" else "free", key(name), sizes.get(name, 1024)))
        else:
            names = word.strip("[]") if word[0] == "[" else word[2:]
            keys, number = tuple(map(key, filter(None, names.split(",")))), len(events)
            marks[number], at[word[0]][number] = Mark(KINDS[word[0]], 0, None, keys), keys
            events.append(AllocatorEvent("mark", number))
    rows = [each.split(":") for each in stood]
    return Written(
        events=events,
        marks=marks,
        stood=[
            Stood(key(name), sizes.get(name, 1024), HOLDERS[held_by.strip("-")], held_by.endswith("-"))
            for name, held_by in rows
        ],
        ends=at["E"],
        casts=at["C"],
        cast_bytes=dict.fromkeys((each for keys in at["C"].values() for each in keys), 1024),
        given={number: dict.fromkeys(keys, 1024) for number, keys in at["F"].items() if keys},
        **more,
    )


def told(found: Attributed) -> str:
    names = (abs(each.key).to_bytes(8, "big").strip(b"\0").decode() for each in found.storages)
    return " ".join(f"{name}:{each.whose}" for name, each in zip(names, found.storages, strict=True))


ROWS = [
    Row(loop="frees what it makes", tape="F +a [a] -a E", whose="a:step"),
    Row(loop="has its first gradients", tape="F +g [g] E", elsewhere="g", whose="g:step"),
    Row(loop="adds to gradients", stood="g:gradient", tape="F +h -h [g] E", elsewhere="g", whose="g:gradient h:step"),
    Row(
        loop="frees the last step's gradients before backward",
        stood="g:gradient-",
        tape="F -g +h [h] E",
        elsewhere="h",
        whose="g:gradient h:step",
    ),
    Row(
        loop="keeps the last step's gradients beside the new ones",
        stood="g:gradient",
        tape="F [g] +h [h] E",
        elsewhere="h",
        whose="g:left h:step",
    ),
    Row(loop="makes its optimizer's state", tape="F +a [a] -a E +s E:s", whose="a:step s:optimizer"),
    Row(loop="lets two optimizers step", tape="F E +s E:s +t E:t", whose="s:optimizer t:optimizer"),
    Row(
        loop="replaces what its optimizer has, as Shampoo does",
        tape="F E +s E:s -s +t E:t",
        whose="s:optimizer t:optimizer",
    ),
    Row(loop="lets kernels keep a workspace", tape="F +w +a [a] -a E", whose="w:workspace a:step"),
    Row(loop="lets a kernel have a workspace for a while", tape="F +w -w +v E -v", whose="w:step v:step"),
    Row(
        loop="runs collectives, whose threads free what no tape sees freed",
        tape="F +w +w -w +v E",
        threads=True,
        whose="w:lost w:step v:lost",
    ),
    Row(
        loop="is recorded: what it saves is copied elsewhere, and back for its backward",
        tape="F +a [a] A +c [a] -a -c A +b U:b -b E",
        whose="a:step c:recorder b:step",
    ),
    Row(loop="keeps a saved tensor that backward read", tape="F A +b U:b E", whose="b:left"),
    Row(
        loop="is a step of our own: what it keeps is put back",
        tape="F +c [c] E",
        put_back=True,
        whose="c:step",
    ),
    Row(loop="has a backward before its last", tape="F +a [a] E -a +b [b] E", whose="a:step b:left"),
    Row(loop="holds an output until the next one", tape="F +o [o] E -o", whose="o:step"),
    Row(loop="holds an output until the next step makes another", tape="F +o [o] E", whose="o:left"),
    Row(
        loop="holds an output of the step before until then",
        stood="o:loop-",
        tape="F +p [p] -o E",
        whose="o:older p:left",
    ),
    Row(loop="has a teacher", stood="t:loop", tape="F [t] +a [a] -a E", whose="t:older a:step"),
    Row(
        loop="makes targets before its forward",
        stood="t:loop-",
        tape="F +a [a] -a -t E +u",
        whose="t:loop a:step u:next",
    ),
    Row(
        loop="frees before it steps what it had for its first evaluation, and never makes again",
        stood="e:loop-",
        tape="F -e E +u",
        sizes={"u": 8192},
        whose="e:older u:next",
    ),
    Row(
        loop="makes one of two alike again",
        stood="t:loop- u:loop-",
        tape="F -t -u E +v",
        whose="t:loop u:older v:next",
    ),
    Row(
        loop="is cut off by another model's recording",
        stood="t:loop-",
        tape="F -t E",
        repeats=False,
        whose="t:loop",
    ),
    Row(
        loop="keeps a loss for its log and frees none",
        tape="F +l [l] -l E +m",
        sizes={"m": 4},
        whose="l:step m:between",
    ),
    Row(loop="evaluates after its step", tape="F +a [a] -a E F +b [b] -b E", whose="a:step b:step"),
    Row(
        loop="scores its weights between the steps without a forward",
        tape="F +a [a] -a E +b -b",
        whose="a:step b:between",
    ),
    Row(loop="makes the next batch", tape="F E +x", elsewhere="x", whose="x:between"),
    Row(
        loop="has a hidden state that each step replaces",
        stood="m:object-",
        tape="F +n [n] -m E",
        whose="m:replaced n:left",
    ),
    Row(loop="has a hidden state that stays", stood="m:object", tape="F [m] E", whose="m:held"),
    Row(loop="fills a cache in its first step", tape="F +c [c] E", whose="c:left"),
    Row(
        loop="frees the graph of the step before, which it holds as an output",
        stood="G:graph-",
        tape="F -G E",
        whose="G:graph",
    ),
    Row(
        loop="holds the graphs of two steps, and frees the older",
        stood="G:graph- H:graph",
        tape="F -G E",
        whose="G:graph H:held",
    ),
    Row(loop="holds the graph of a step that failed", stood="G:graph", tape="F E", whose="G:failed"),
    Row(
        loop="runs its microbatches in one autocast region",
        tape="F C:w +a [a] -a E",
        whose="w:cast a:step",
    ),
    Row(
        loop="runs its microbatches in one autocast region, where casts are seen",
        stood="w:loop t:loop",
        tape="F C:w E",
        whose="w:cast t:older",
    ),
    Row(loop="casts anew, and holds the region open", tape="F +w [w] C:w E", whose="w:step"),
    Row(
        loop="gives its second forward what it made before the step",
        stood="b:loop",
        tape="F F:b [b] E",
        whose="b:given",
    ),
    Row(
        loop="gives its second forward what nobody saw",
        stood="x:model",
        tape="F F:b [b] F:b,x E",
        whose="x:model b:given",
    ),
    Row(
        loop="gives its second forward what the first returned",
        tape="F +o [o] F:o -o E",
        whose="o:step",
    ),
    Row(
        loop="gives its second forward what it makes before each step",
        stood="b:loop-",
        tape="F F:b [b] -b E +c",
        whose="b:loop c:next",
    ),
    Row(
        loop="ends with a forward that no backward comes to, and frees its output later",
        tape="F +a [a] -a E F +o [o] [] +p -o",
        whose="a:step o:step p:between",
        sizes={"p": 8},
    ),
    Row(
        loop="is distributed: its buckets are made anew once",
        tape="F +b [b] +c [c] +a [a] E",
        sizes={"b": 3000, "c": 1000},
        bucket_bytes=4000,
        whose="b:bucket c:bucket a:left",
    ),
    Row(
        loop="is distributed, and something is left between its buckets",
        tape="F +a [a] +b [b] +d [d] +c [c] E",
        sizes={"a": 8, "b": 3000, "d": 5000, "c": 1000},
        bucket_bytes=4000,
        whose="a:left b:left d:left c:left",
    ),
    Row(
        loop="is distributed, and its gradients are views of buckets",
        tape="F +b [b] E",
        elsewhere="b",
        bucket_bytes=1024,
        views=True,
        whose="b:bucket",
    ),
    Row(
        loop="is distributed, and its buckets come with its next forward",
        stood="t:loop-",
        tape="F -t E +u +b",
        sizes={"b": 4000},
        bucket_bytes=4000,
        whose="t:loop u:next b:bucket",
    ),
    Row(
        loop="is distributed, and a thread that no tape sees frees a tensor that was named",
        tape="F +a [a] +a [a] -a E",
        threads=True,
        whose="a:step a:step",
    ),
    Row(
        loop="is sharded: what was gathered before the step is freed in it, and gathered again at its end",
        stood="w:gradient-",
        tape="F [w] -w +v [v] E",
        elsewhere="v",
        whose="w:gradient v:step",
    ),
    Row(
        loop="is a stage of a pipeline, which keeps its gradients of inputs until the next step",
        tape="F +k [k] E",
        elsewhere="k",
        whose="k:step",
    ),
    Row(
        loop="is a stage of a pipeline, where gradients arrive in the same buffers",
        stood="r:object",
        tape="F [r] E",
        whose="r:held",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.loop)
def test_whose_bytes_each_storage_is(row: Row) -> None:
    assert told(attribute(row.written())) == row.whose


@st.composite
def steps(draw: st.DrawFn) -> Written:
    """Steps of any kind: tapes on which only what is allocated is freed."""
    stood = draw(st.lists(st.sampled_from(["model", "gradient", "object", "object-", "loop", "loop-"]), max_size=4))
    names = [f"s{number}" for number in range(len(stood))]
    going, here = [name for name, held_by in zip(names, stood, strict=True) if held_by[-1] == "-"], [*names]
    tape, made = ["F"], 0
    for kind in draw(st.lists(st.sampled_from("+++--[[[FECAU"), max_size=24)):
        free = [name for name in here if name[0] != "s" or name in going]
        if kind == "+":
            made += 1
            here.append(f"a{made}")
            tape.append(f"+a{made}")
        elif kind == "-" and free:
            here.remove(name := draw(st.sampled_from(free)))
            tape.append(f"-{name}")
        elif kind in "FECAU" or here:
            name = draw(st.sampled_from(here)) if here else ""
            tape.append(f"[{name}]" if kind in "-[" else f"{kind}:{name}" if name else "F")
    tape += [f"-{name}" for name in going if name in here]
    sizes = {name: draw(st.sampled_from([8, 1024, 4096])) for name in [*names, *(f"a{i}" for i in range(made + 1))]}
    rows = [f"{name}:{held_by}" for name, held_by in zip(names, stood, strict=True)]
    elsewhere = frozenset(map(key, draw(st.lists(st.sampled_from(here), max_size=2)) if here else []))
    return written([*tape, "E"], rows, sizes, elsewhere=elsewhere, repeats=draw(st.booleans()))


@given(steps())
def test_each_storage_is_somebodys_once(step: Written) -> None:
    found = attribute(step)
    allocated = [place for place, event in enumerate(step.events) if event.kind == "alloc"]
    assert [each.key for each in found.storages[: len(step.stood)]] == [each.key for each in step.stood]
    assert [each.born for each in found.storages if each.born >= 0] == allocated


@given(steps())
def test_addresses_mean_nothing(step: Written) -> None:
    """An allocator hands out others in each step."""

    def at(keys: Any) -> tuple[int, ...]:
        return tuple(100_000 + 3 * each for each in keys)

    moved = dataclasses.replace(
        step,
        stood=[each._replace(key=at([each.key])[0]) for each in step.stood],
        events=[
            each if each.kind == "mark" else AllocatorEvent(each.kind, at([each.key])[0], each.bytes)
            for each in step.events
        ],
        marks={number: dataclasses.replace(mark, keys=at(mark.keys)) for number, mark in step.marks.items()},
        ends={number: at(keys) for number, keys in step.ends.items()},
        casts={number: at(keys) for number, keys in step.casts.items()},
        cast_bytes={at([each])[0]: size for each, size in step.cast_bytes.items()},
        given={number: dict(zip(at(sizes), sizes.values(), strict=True)) for number, sizes in step.given.items()},
        elsewhere=frozenset(at(step.elsewhere)),
    )
    assert [each.whose for each in attribute(moved).storages] == [each.whose for each in attribute(step).storages]


@given(steps())
def test_a_step_allocates_what_is_its_own_and_no_more(step: Written) -> None:
    found = attribute(step)
    allocated = [(each.key, each.bytes) for each in events_of(step, found) if each.kind == "alloc"]
    assert allocated == [(each.key, each.bytes) for each in found.of_step()]
