from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings

from autockpt.solvers import Problem
from autockpt.solvers.plans.blocks import block_chain

from .strategies import problems
from .synthetic import Trace, encoder_decoder, transformer


def names(problem: Problem) -> list[str]:
    return [problem.calls[element].name.removesuffix("#0") for element in block_chain(problem).elements]


def stack(t: Trace, name: str, n_blocks: int, x: int, n_bytes: int) -> int:
    """``name.0`` … with two leaves each, the second of which saves."""
    t.open(name)
    for i in range(n_blocks):
        t.open(f"{name}.{i}")
        x = t.leaf(f"{name}.{i}.in", n_bytes, x, seconds=1.0, saves=(x,))
        x = t.leaf(f"{name}.{i}.out", n_bytes, x, seconds=1.0, saves_out=True)
        t.close()
    t.close()
    return x


def test_a_gpt_is_its_blocks() -> None:
    assert [name for name in names(transformer(12)) if ".h." in name] == [f"transformer.h.{i}" for i in range(12)]


def test_two_stacks_give_two_groups() -> None:
    t = Trace()
    t.open("")
    x = t.op(4, seconds=1.0)
    x = stack(t, "encoder", 6, x, 6)
    x = stack(t, "decoder", 6, x, 6)
    t.close()
    problem = t.problem(static_bytes=1)
    assert names(problem) == [f"encoder.{i}" for i in range(6)] + [f"decoder.{i}" for i in range(6)]
    chain = block_chain(problem)
    assert chain.siblings(0, 5) and not chain.siblings(5, 6)
    runs = [problem.candidates[c] for c in chain.runs(4)]
    assert [run.length for run in runs] == [4, 2, 4, 2]


def test_every_decoder_block_reading_the_encoder_changes_nothing() -> None:
    assert [name for name in names(encoder_decoder(6)) if "." in name] == [
        f"{stack}.{i}" for stack in ("encoder", "decoder") for i in range(6)
    ]


def test_a_large_element_is_opened_and_small_ones_open_nothing() -> None:
    t = Trace()
    t.open("")
    x = t.op(4, seconds=1.0)
    for i in range(12):
        x = t.leaf(f"drop{i}", 1, x, seconds=1.0, saves_out=True)
    x = stack(t, "stem", 4, x, 40)
    for i in range(4):
        t.open(f"block{i}")
        x = t.leaf(f"block{i}.a", 30, x, seconds=1.0, saves_out=True)
        x = t.leaf(f"block{i}.b", 30, x, seconds=1.0, saves_out=True)
        t.close()
    t.close()
    assert [name for name in names(t.problem(static_bytes=1)) if "drop" not in name] == [
        *(f"stem.{i}" for i in range(4)),
        *(f"block{i}" for i in range(4)),
    ]


def test_skips_of_a_u_net_change_nothing_in_the_order() -> None:
    t = Trace()
    t.open("")
    x = t.op(64, seconds=1.0)
    skips = []
    for i in range(4):
        t.open(f"down.{i}")
        x = t.op(64 >> i, x, seconds=1.0, saves=(x,))
        skips.append(x)
        t.close()
    for i in range(4):
        t.open(f"up.{i}")
        x = t.op(64 >> (3 - i), x, skips.pop(), seconds=1.0, saves=(x,))
        t.close()
    t.close()
    assert names(t.problem(static_bytes=1)) == [f"down.{i}" for i in range(4)] + [f"up.{i}" for i in range(4)]


@settings(max_examples=100)
@given(problems())
def test_elements_never_lie_inside_one_another_and_runs_cover_each_once(problem: Problem) -> None:
    chain = block_chain(problem)
    stops = [problem.calls[element].stop for element in chain.elements]
    assert all(stop <= after for stop, after in zip(stops, chain.elements[1:], strict=False))
    for longest in range(1, len(chain.elements) + 1):
        spans = [(problem.candidates[c].start, problem.candidates[c].stop) for c in chain.runs(longest)]
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
