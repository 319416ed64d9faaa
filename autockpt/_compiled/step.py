"""The joint graphs of one compiled step as data: operators in the order in which they run, and storages. No torch.

    forward    f0  f1  f2 │ f3  f4      two graphs, one after the other
    backward   b0  b1 │ b2  b3  b4      in the opposite order

Views are no operators: they read and make the same storage. What stands before and after the step is no storage here:
parameters, buffers, the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..solvers.errors import InvalidProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a joint graph.

    Attributes:
        name: its name in the graph.
        module: qualified name of the module whose code called it; of one of backward, that of its forward.
        graph: number of the call of its graph, in the order of forward.
        place: index among the nodes of that graph.
        seconds: of running it once, as a roofline says.
        reads: storages that it reads, also through views.
        makes: storages that it makes.
        scratch_bytes: what its kernel holds for itself while it runs.
        kept: whether it must not run a second time: it draws random numbers, reads or writes memory that is
            overwritten, or speaks to other ranks, or nobody has promised that it does not.
    """

    name: str
    module: str = ""
    graph: int = 0
    place: int = 0
    seconds: float = 0.0
    reads: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    scratch_bytes: int = 0
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What became of operators in generated code, each by signature of its graph, whether in backward, and name.

    Attributes:
        unheld: those whose result has no memory: whoever reads it computes it.
        held: those whose result has.
        kernels: those of the held that a kernel of their own makes, which may hold something for itself.
    """

    unheld: frozenset[tuple[str, bool, str]] = frozenset()
    held: frozenset[tuple[str, bool, str]] = frozenset()
    kernels: frozenset[tuple[str, bool, str]] = frozenset()

    def __or__(self, other: Fused) -> Fused:
        return Fused(
            unheld=self.unheld | other.unheld, held=self.held | other.held, kernels=self.kernels | other.kernels
        )


@dataclass(frozen=True, kw_only=True)
class JointStep:
    """The operators of a compiled step, and the storages between them.

    Attributes:
        forward: operators of forward, in order.
        backward: operators of backward, in the order in which they run where nothing is recomputed.
        storage_bytes: size of each storage.
        outputs: storages that forward hands out. They stand until the step ends.
        gradients: storages that backward hands out. They stand until the step ends.
        crossing: storages that one graph hands to a later one. They stand until forward ends, and longer where an
            operator of backward reads them.
        fused: storages of forward that compiled code holds only where they wait for backward.
        fused_again: those that it does not hold where they are made again.

    Raises:
        InvalidProblem: a storage is read before it is made, or made twice.
    """

    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    storage_bytes: tuple[int, ...]
    outputs: frozenset[int] = frozenset()
    gradients: frozenset[int] = frozenset()
    crossing: frozenset[int] = frozenset()
    fused: frozenset[int] = frozenset()
    fused_again: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        made: set[int] = set()
        for operator in (*self.forward, *self.backward):
            missing = [storage for storage in operator.reads if storage not in made]
            twice = [storage for storage in operator.makes if storage in made]
            if missing or twice:
                raise InvalidProblem(
                    f"operator {operator.name!r} reads storages {missing} before they are made, or makes {twice} again"
                )
            made.update(operator.makes)

    @cached_property
    def maker(self) -> dict[int, int]:
        """By storage that forward makes, the index of the operator that makes it."""
        return {storage: i for i, each in enumerate(self.forward) for storage in each.makes}

    @cached_property
    def last_read(self) -> dict[int, int]:
        """By storage that forward makes, the last operator of forward that makes or reads it."""
        return {storage: i for i, each in enumerate(self.forward) for storage in (*each.makes, *each.reads)}

    @cached_property
    def _last_again(self) -> dict[int, int]:
        """By storage, the last operator of forward that makes or reads it and may run again."""
        able = ((i, each) for i, each in enumerate(self.forward) if not each.kept)
        return {storage: i for i, each in able for storage in (*each.makes, *each.reads)}

    def leaves(self, storage: int, end: int) -> bool:
        """Whether a storage of forward is there in any case, whatever runs again before an operator.

        Args:
            storage: the storage.
            end: the operator. What only later ones read that never run again is theirs in forward alone.
        """
        return storage in self.outputs or storage in self.crossing or self._last_again.get(storage, -1) >= end

    @cached_property
    def backward_reads(self) -> dict[int, tuple[int, ...]]:
        """By storage that forward makes and backward reads, the operators of backward that read it, in order."""
        found: dict[int, list[int]] = {}
        for k, operator in enumerate(self.backward):
            for storage in dict.fromkeys(operator.reads):
                if storage in self.maker:
                    found.setdefault(storage, []).append(k)
        return {storage: tuple(places) for storage, places in found.items()}

    @cached_property
    def seconds(self) -> float:
        """Seconds of all operators of forward."""
        return sum(operator.seconds for operator in self.forward)

    def again_bytes(self, storage: int) -> int:
        """Return the size of a storage where it is made again."""
        return 0 if storage in self.fused_again else self.storage_bytes[storage]

    def saved(self, again: Collection[int]) -> frozenset[int]:
        """Return the storages that wait for backward if operators of forward run again, given by their indices."""
        made = {storage for i in again for storage in self.forward[i].makes}
        needed = set(self.backward_reads) | {storage for i in again for storage in self.forward[i].reads}
        return frozenset(needed - made)

    def bursts(self, again: Collection[int]) -> list[tuple[int, list[int]]]:
        """Return what runs again, and before which operator of backward: as late as may be, in the order of forward.

        Args:
            again: operators of forward that may run again, by index.
        """
        wanted, made = set(again), set[int]()
        places = {k for i in wanted for s in self.forward[i].makes for k in self.backward_reads.get(s, ())}
        found = []
        for k in sorted(places):
            todo, burst = [*self.backward[k].reads], set[int]()
            while todo:
                i = self.maker.get(todo.pop(), -1)
                if i in wanted and i not in made:
                    made.add(i)
                    burst.add(i)
                    todo += self.forward[i].reads
            if burst:
                found.append((k, sorted(burst)))
        return found


def levels(step: JointStep, again: Collection[int]) -> list[int]:
    """Return the bytes that are allocated while each operator runs, above what was allocated before the step.

    Plans are held to this definition: each storage is allocated from the operator that makes it to the last one that
    reads it.

    Args:
        step: the step.
        again: operators of forward that run again, by index.
    """
    begin, runs = len(step.forward), [*step.forward]
    stays = step.outputs | step.gradients
    bursts = dict(step.bursts(again))
    for k, operator in enumerate(step.backward):
        runs += [*(step.forward[i] for i in bursts.get(k, ())), operator]
    change = [0] * (len(runs) + 1)
    for (storage, late), until in _last_read(step, again, runs).items():
        if storage in step.fused and not late and until < begin and storage not in stays | step.crossing:
            continue
        made_in = range(begin, len(runs)) if late else range(len(runs))
        born = next(t for t in made_in if storage in runs[t].makes)
        end = len(runs) if storage in stays else until + 1
        if storage in step.crossing and not late:
            end = max(end, begin)
        size = step.again_bytes(storage) if late else step.storage_bytes[storage]
        change[born] += size
        change[end] -= size
    found, level = [], 0
    for difference, operator in zip(change, runs, strict=False):
        level += difference
        found.append(level + operator.scratch_bytes)
    return found


def _last_read(step: JointStep, again: Collection[int], runs: Sequence[Operator]) -> dict[tuple[int, bool], int]:
    """Return the place among all runs at which each storage is last read, by storage and whether it was made again."""
    saved, begin, last = step.saved(again), len(step.forward), dict[tuple[int, bool], int]()
    again_made = {storage for i in again for storage in step.forward[i].makes} - step.outputs
    for t, operator in enumerate(runs):
        for storage in (*operator.makes, *operator.reads):
            late = t >= begin and storage in again_made
            if t < begin or late or storage in saved or storage not in step.maker:
                last[storage, late] = t
    return last


def fused_step(step: JointStep, names: Sequence[str], seen: Fused) -> JointStep:
    """Return a step as compiled code runs it, as far as that was seen.

    What has no memory in the code of some plan is taken to have none under others, except where it waits for backward.

    Args:
        step: the step.
        names: signature of the graph of each call.
        seen: what became of its operators.
    """
    fused, again, sizes = set[int](), set[int](), [*step.storage_bytes]
    for operator in step.forward:
        once, late = ((names[operator.graph], late, operator.name) for late in (False, True))
        if once in seen.unheld:
            fused.update(operator.makes)
        if late in seen.unheld or (once in seen.unheld and late not in seen.held):
            again.update(operator.makes)
    for operator in step.backward:
        if (names[operator.graph], True, operator.name) in seen.unheld:
            for storage in set(operator.makes) - step.gradients:
                sizes[storage] = 0

    def alone(operator: Operator, late: bool) -> Operator:
        key = names[operator.graph], late, operator.name
        generated = (key in seen.unheld or key in seen.held) and key not in seen.kernels
        return replace(operator, scratch_bytes=0) if generated else operator

    return replace(
        step,
        forward=tuple(alone(each, False) for each in step.forward),
        backward=tuple(alone(each, True) for each in step.backward),
        storage_bytes=tuple(sizes),
        fused=frozenset(fused),
        fused_again=frozenset(again),
    )
