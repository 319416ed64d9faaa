"""What a step takes in the code that inductor generates: it is read by running it where no kernel does anything.

plan ─▶ copy over fake tensors, compiled as far as generated code ─▶ two steps on a tape of storages ─▶ their peaks
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from .._calls.values import tensors
from .._data.compiled_plan import CompiledPlan
from .._data.errors import NotApplicable
from .._record.watch.routing import Given
from .._record.watch.storage_tape import StorageTape
from .._torch.private import compiling as private
from .._torch.private.compiling import CompileSettings, compiled_apart
from .._torch.private.inductor import code_backend, without_kernels
from .cut import signature
from .dry import over_fakes
from .partition import Partition
from .plan import Lowered
from .scratch import Asked, highest, looks_of, scratch_of_calls
from .step import Fused


def lower(model: nn.Module, given: Given, plan: CompiledPlan, settings: CompileSettings, step_bytes: int) -> Lowered:
    """Let inductor generate the code of a step that is cut by a plan, and return what that code holds.

    No kernel is compiled, and nothing of the model changes.

    Args:
        model: the model.
        given: its batch.
        plan: what runs again.
        settings: how the user compiled it.
        step_bytes: what the optimizer's step takes for a moment, beside all gradients.

    Raises:
        NotApplicable: the generated code needs values of tensors, or calls what takes no fake ones.
    """
    tape, begins, partition = _CodeTape(), list[int](), _CutAsPlanned(plan)
    with over_fakes(model, *given) as (twin, args, kwargs), without_kernels(tape.around, partition.made):
        backend = code_backend(partition, settings.options)
        run = compiled_apart(twin, backend=backend, dynamic=settings.dynamic)
        for _ in range(2):
            begins.append(tape.mark())
            try:
                _step(functools.partial(run, *args, **kwargs), tape)
            except (RuntimeError, NotImplementedError, LookupError, AttributeError, NameError, TypeError) as error:
                raise NotApplicable(
                    "the code that inductor generates for this model cannot be run without its kernels, so what it "
                    f"holds is not known: {type(error).__name__}: {error!s:.300}\nCompile by backend='aot_eager', or "
                    "apply to the model itself, apply(model, budget, inputs=batch, loss=loss), and compile after that."
                ) from error
            for each in (*twin.parameters(), *tensors((args, kwargs))):
                each.grad = None
    first, last = (tape.peak_bytes(begin, step_bytes) for begin in begins)
    return Lowered(peak_bytes=last, first_bytes=max(first, last), fused=partition.fused)


def _step(forward: Callable[[], Any], tape: _CodeTape) -> None:
    """Run forward, a loss that takes as much as a cross-entropy where no output is a scalar, and backward."""
    outputs = forward()
    trained = [each for each in tensors((outputs,)) if each.requires_grad]
    scalars = [each for each in trained if each.numel() == 1]
    with tape:
        tape.hold(0 if scalars else sum(3 * 4 * each.numel() for each in trained))
        losses = scalars or [(each * 1).sum() for each in trained]
        torch.autograd.backward(losses)
    tape.mark()


class _CutAsPlanned(private.Partitioner):
    """Cuts as a plan says, and is told what became of the operators.

    Args:
        plan: the plan.

    Attributes:
        fused: what became of them so far.
    """

    def __init__(self, plan: CompiledPlan) -> None:
        self.fused = Fused()
        self._partition = Partition(plan)

    def uuid(self) -> None:
        """Say that nothing which is made here may be taken from a cache."""

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> private.Graphs:
        private.as_partitioned(gm)
        name = signature(gm)
        for node in gm.graph.nodes:
            node.meta[OF_GRAPH] = name
        return self._partition(gm, joint_inputs, **kwargs)

    def made(self, late: bool, nodes: Mapping[fx.Node, bool | None]) -> None:
        """Note what became of operators in forward's code, or in that of backward."""
        keys = {(node.meta.get(OF_GRAPH, ""), late, node.name): alone for node, alone in nodes.items()}
        unheld, kernels = (frozenset(key for key, alone in keys.items() if alone is which) for which in (None, True))
        self.fused |= Fused(unheld=unheld, held=frozenset(keys) - unheld, kernels=kernels)


OF_GRAPH = "autockpt_graph"
"""By this the nodes of the two graphs know the signature of the joint graph that they were cut from."""


class _CodeTape(StorageTape):
    """A tape of what generated code makes and drops, and of the operators that it calls."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[int, Asked]] = []
        self._held: list[tuple[int, int]] = []
        self._depth = 0

    def __enter__(self) -> Any:
        self._depth += 1
        return super().__enter__() if self._depth == 1 else self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth:
            super().__exit__(*error)

    def around(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what runs a call of generated code on this tape."""

        def on_tape(args: Any) -> Any:
            with self:
                return call(args)

        return on_tape

    def hold(self, size_bytes: int) -> None:
        """Note that somebody else holds so much for a moment."""
        self._held.append((len(self._events), size_bytes))

    def _on_operator(self, op: Any, given: Given, run: Callable[[], Any]) -> Any:
        self._calls.append((len(self._events), (op, *looks_of(given))))
        return super()._on_operator(op, given, run)

    def peak_bytes(self, begin: int, step_bytes: int) -> int:
        """Return the highest level of the step that begins with a mark, above the level there.

        Args:
            begin: number of the mark; the next one ends the step.
            step_bytes: what somebody holds for a moment at the end.
        """
        events = self.events()
        first, last = (i for i, each in enumerate(events) if each.kind == "mark" and each.key in (begin, begin + 1))
        inside = [(at, asked) for at, asked in self._calls if first <= at <= last]
        extra = [0] * (len(events) + 1)
        scratch = scratch_of_calls([asked for _, asked in inside])
        for at, size in (*zip((at for at, _ in inside), scratch, strict=True), *self._held, (last, step_bytes)):
            extra[at] = max(extra[at], size)
        return highest(events[first : last + 1], extra[first:])[0]
