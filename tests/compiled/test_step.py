"""The problem that is made of joint graphs, held to the definition: each storage from its maker to its last reader."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autockpt.solvers import simulate
from tests.doors import (
    JointFused,
    JointOperator,
    JointStep,
    fused_joint_step,
    joint_levels,
    region_ways,
    regions,
    state_joint_step,
)


@st.composite
def steps(draw: st.DrawFn) -> JointStep:
    """Draw one or two graphs: forward reads what forward made, backward reads what anybody made."""
    number, sizes = 0, list[int]()

    def makes(most: int) -> tuple[int, ...]:
        nonlocal number
        made = tuple(range(number, number + draw(st.integers(1, most))))
        number += len(made)
        sizes.extend(draw(st.integers(0, 40)) for _ in made)
        return made

    graphs = draw(st.integers(1, 2))
    forward, backward, of_graph = list[JointOperator](), list[JointOperator](), dict[int, int]()
    border = draw(st.integers(1, 7))
    for i in range(draw(st.integers(2, 8))):
        graph = int(graphs == 2 and i >= border)
        earlier = [s for s, g in of_graph.items() if g == graph or s % 3 == 0]
        reads = tuple(draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3))) if earlier else ()
        own = makes(2)
        of_graph |= dict.fromkeys(own, graph)
        kept, seconds = draw(st.booleans()) and i % 3 == 0, draw(st.integers(0, 5)) / 8
        forward.append(
            JointOperator(name=f"f{i}", graph=graph, place=i, reads=reads, makes=own, kept=kept, seconds=seconds)
        )
    crossing = {s for each in forward for s in each.reads if of_graph[s] != each.graph}
    later = list[int]()
    for k in range(draw(st.integers(1, 8))):
        graph = int(graphs == 2 and k < 4)
        own_graph = [s for s, g in of_graph.items() if g == graph or (s in crossing and g < graph)]
        reads = tuple(draw(st.lists(st.sampled_from([*own_graph, *later] or [0]), unique=True, max_size=3)))
        made = makes(1)
        later += made
        backward.append(JointOperator(name=f"b{k}", graph=graph, place=100 + k, reads=reads, makes=made))
    last = {s for s, g in of_graph.items() if draw(st.integers(0, 5)) == 0} - crossing
    fused = draw(st.sets(st.sampled_from([*of_graph])))
    return JointStep(
        forward=tuple(forward),
        backward=tuple(backward),
        storage_bytes=tuple(sizes),
        outputs=frozenset(last),
        gradients=frozenset(s for s in later if s % 2),
        crossing=frozenset(crossing),
        fused=frozenset(fused),
        fused_again=frozenset(draw(st.sets(st.sampled_from([*of_graph])))),
    )


@settings(max_examples=60, deadline=None)
@given(step=steps(), data=st.data())
def test_the_judge_says_at_least_what_stands(step: JointStep, data: st.DataObject) -> None:
    """To the byte where at most one operator runs again at once: else the judge adds up what stands in a replay."""
    stated = state_joint_step(step, static_bytes=7)
    assert simulate(stated.problem, ()).peak_bytes == 7 + max(joint_levels(step, ()))
    candidates = stated.problem.candidates
    for number, again in enumerate(stated.again):
        judged, stands = simulate(stated.problem, (number,)), 7 + max(joint_levels(step, again))
        assert judged.peak_bytes >= stands
        bursts = step.bursts(again)
        if all(len(burst) == 1 for _, burst in bursts):
            assert judged.peak_bytes == stands
        assert judged.recompute_seconds == sum(step.forward[i].seconds for _, burst in bursts for i in burst)
    chosen, covered = list[int](), set[int]()
    for number in data.draw(st.permutations(range(len(candidates)))):
        span = range(candidates[number].start, candidates[number].stop)
        if covered.isdisjoint(span):
            covered.update(span)
            chosen.append(number)
    assert simulate(stated.problem, chosen).peak_bytes >= 7 + max(joint_levels(step, stated.chosen(chosen)))


@settings(max_examples=60, deadline=None)
@given(step=steps())
def test_a_way_runs_nothing_again_that_must_not(step: JointStep) -> None:
    """Nor what another region may read in its replays. What never runs again reads it in forward alone."""
    for begin, end in regions(step):
        assert 0 <= begin < end <= len(step.forward)
        assert len({each.graph for each in step.forward[begin:end]}) == 1
        for way in region_ways(step, begin, end):
            for i in way:
                operator = step.forward[begin + i]
                assert begin + i < end and not operator.kept
                assert not step.outputs.union(step.crossing) & {*operator.makes}
                later = (each for each in step.forward[end:] if not each.kept)
                assert not any({*operator.makes} & {*each.reads} for each in later)


@settings(max_examples=60, deadline=None)
@given(step=steps(), data=st.data())
def test_what_code_does_not_hold_counts_only_where_it_waits(step: JointStep, data: st.DataObject) -> None:
    """A step as its code was seen never stands higher, and what waits for backward stands as it did."""
    plain = replace(step, fused=frozenset(), fused_again=frozenset())
    keys = st.sets(
        st.sampled_from([("g", late, f"{kind}{i}") for late in (False, True) for kind in "fb" for i in (0, 1, 2)])
    )
    seen = JointFused(unheld=frozenset(data.draw(keys)), held=frozenset(data.draw(keys)))
    fused = fused_joint_step(plain, ["g", "g"], seen)
    assert fused_joint_step(fused, ["g", "g"], JointFused()) == replace(
        fused, fused=frozenset(), fused_again=frozenset()
    )
    again = data.draw(st.sets(st.sampled_from([i for i, each in enumerate(step.forward) if not each.kept] or [0])))
    pairs = zip(joint_levels(fused, again), joint_levels(plain, again), strict=True)
    assert all(0 <= one <= other for one, other in pairs)
    assert fused.saved(again) == plain.saved(again)
    end = len(step.forward) - 1
    waits = {s for s in step.saved(again) | step.outputs | step.crossing if s in step.maker}
    assert joint_levels(fused, again)[end] >= sum(step.storage_bytes[s] for s in waits)
