"""Problems that look like a transformer's, made from a small description of each op.

The row of steps is one forward step an op, then one backward step an op, in reverse. A tensor lives in the base
from its birth to its last forward read; afterwards only saves and holds keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autockpt.solvers import (
    Addition,
    Call,
    Candidate,
    Dataflow,
    Hold,
    Item,
    Problem,
    Save,
    Step,
    Tensor,
    Unit,
    make_menu,
)

HOST_SECONDS = 50e-6


@dataclass
class Op:
    """One operator: what it reads, makes and saves. ``out_bytes`` 0 means a result that nothing stores."""

    call: int
    reads: tuple[int, ...]
    saves: tuple[int, ...]
    seconds: float
    out: int


@dataclass
class Trace:
    """A forward pass under construction."""

    names: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    tensor_bytes: list[int] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)

    def open(self, name: str) -> None:
        self.parents.append(self.stack[-1] if self.stack else -1)
        self.names.append(name)
        self.stack.append(len(self.names) - 1)

    def close(self) -> None:
        self.stack.pop()

    def op(
        self, out_bytes: int, *reads: int, seconds: float, saves: tuple[int, ...] = (), saves_out: bool = False
    ) -> int:
        """Run an op in the open call; returns its output."""
        out = len(self.tensor_bytes)
        self.tensor_bytes.append(out_bytes)
        saved = (*saves, out) if saves_out else saves
        self.ops.append(Op(self.stack[-1], reads, saved, seconds, out))
        return out

    def leaf(
        self,
        name: str,
        out_bytes: int,
        *reads: int,
        seconds: float,
        saves: tuple[int, ...] = (),
        saves_out: bool = False,
    ) -> int:
        """A call with one op."""
        self.open(name)
        out = self.op(out_bytes, *reads, seconds=seconds, saves=saves, saves_out=saves_out)
        self.close()
        return out

    def problem(
        self, *, static_bytes: int, gradient_bytes: int = 0, transient_bytes: int = 0, longest_run: int | None = None
    ) -> Problem:
        """Finish: steps, tensors, and a candidate for every call and every run of siblings that saves something."""
        n_ops = len(self.ops)
        backward = [2 * n_ops - 1 - i for i in range(n_ops)]
        born = {op.out: i for i, op in enumerate(self.ops)}
        last_read = dict(born)
        saved_by: dict[int, list[int]] = {tensor: [] for tensor in range(len(self.tensor_bytes))}
        for i, op in enumerate(self.ops):
            for tensor in op.reads:
                last_read[tensor] = i
            for tensor in op.saves:
                saved_by[tensor].append(i)

        base = [static_bytes] * (2 * n_ops)
        for tensor, first in born.items():
            for step in range(first, last_read[tensor] + 1):
                base[step] += self.tensor_bytes[tensor]
        for i, op in enumerate(self.ops):
            base[backward[i]] += transient_bytes + 2 * self.tensor_bytes[op.out]
            base[backward[i]] += gradient_bytes * (n_ops - i) // n_ops

        tensors = tuple(
            Tensor(
                bytes=n_bytes,
                free_step=last_read[tensor] + 1,
                saves=tuple(Save(call=self.ops[i].call, until=backward[i] + 1) for i in saved_by[tensor]),
            )
            for tensor, n_bytes in enumerate(self.tensor_bytes)
        )
        steps = tuple(
            Step(name=f"{'forward' if i < n_ops else 'backward'} of {self.names[op.call]}", base_bytes=base[i])
            for i, op in enumerate([*self.ops, *reversed(self.ops)])
        )
        stops = self._stops()
        return Problem(
            steps=steps,
            calls=tuple(
                Call(name=f"{name}#0", parent=parent, stop=stop)
                for name, parent, stop in zip(self.names, self.parents, stops, strict=True)
            ),
            tensors=tensors,
            candidates=tuple(self._candidates(stops, backward, saved_by, longest_run)),
        )

    def _stops(self) -> list[int]:
        stops = list(range(1, len(self.names) + 1))
        for i in range(len(self.names) - 1, 0, -1):
            parent = self.parents[i]
            stops[parent] = max(stops[parent], stops[i])
        return stops

    def _candidates(
        self, stops: list[int], backward: list[int], saved_by: dict[int, list[int]], longest_run: int | None
    ) -> Iterator[Candidate]:
        siblings: dict[int, list[int]] = {}
        for call, parent in enumerate(self.parents):
            if parent >= 0:
                siblings.setdefault(parent, []).append(call)
        for group in siblings.values():
            for i, first in enumerate(group):
                for j in range(i, len(group)):
                    if j > i and (longest_run is not None and j - i >= longest_run):
                        break
                    if j > i and not self.names[first].rpartition(".")[2].isdigit():
                        break  # runs of blocks only
                    if j > i and not self.names[group[j]].rpartition(".")[2].isdigit():
                        break
                    candidate = self._candidate(first, stops[group[j]], j - i + 1, group[j], backward, saved_by)
                    if candidate is not None:
                        yield candidate

    def _candidate(
        self, start: int, stop: int, length: int, last: int, backward: list[int], saved_by: dict[int, list[int]]
    ) -> Candidate | None:
        inside = [i for i, op in enumerate(self.ops) if start <= op.call < stop]
        saving = [i for i in inside if self.ops[i].saves]
        if not saving:
            return None
        made = {self.ops[i].out for i in inside}
        first_unpack, release = backward[saving[-1]], backward[saving[0]] + 1
        until: dict[int, int] = {}
        for i in saving:
            for tensor in self.ops[i].saves:
                until[tensor] = max(until.get(tensor, 0), backward[i] + 1)
        grouped: dict[int, int] = {}
        for tensor, end in until.items():
            if tensor in made:
                grouped[end] = grouped.get(end, 0) + self.tensor_bytes[tensor]
        transient = max(self.tensor_bytes[self.ops[i].out] for i in inside)
        boundary = sorted({t for i in inside for t in self.ops[i].reads if t not in made})
        last_made = max((i for i in inside if self.ops[i].out in until), default=inside[0])
        name = f"{self.names[start]}#0" + (f" … {self.names[last]}#0" if length > 1 else "")
        return Candidate(
            name=name,
            start=start,
            stop=stop,
            length=length,
            recompute_seconds=sum(self.ops[i].seconds for i in inside if i <= last_made) + HOST_SECONDS,
            holds=tuple(Hold(tensor=t, until=release) for t in boundary),
            additions=(
                *(Addition(bytes=n, start=first_unpack, until=end) for end, n in sorted(grouped.items())),
                Addition(bytes=transient, start=first_unpack, until=first_unpack + 1),
            ),
        )


def transformer(n_layers: int = 48, *, unit: int = 4 * 2**20, gradient_bytes: int = 0, fine: bool = True) -> Problem:
    """A GPT-2-like chain: 13 calls a block, 30 ops a block when `fine`."""
    t = Trace()
    ms = 1e-3
    t.open("")
    t.open("transformer")
    mask = t.leaf("transformer.wpe", unit // 16, seconds=0.01 * ms)
    x = t.leaf("transformer.wte", unit, mask, seconds=0.1 * ms)
    x = t.leaf("transformer.drop", unit, x, seconds=0.1 * ms, saves_out=True)
    for i in range(n_layers):
        name = f"transformer.h.{i}"
        t.open(name)
        n1 = t.leaf(f"{name}.ln_1", unit, x, seconds=0.1 * ms, saves=(x,))
        t.open(f"{name}.attn")
        qkv = t.leaf(f"{name}.attn.c_attn", 3 * unit, n1, seconds=1.5 * ms, saves=(n1,))
        t.open(f"{name}.attn.core")
        q, k, v = (t.op(unit, qkv, seconds=0.02 * ms) for _ in range(3))
        s = t.op(4 * unit, q, k, seconds=0.8 * ms, saves=(q, k))
        s = t.op(4 * unit, s, mask, seconds=0.2 * ms)
        s = t.op(4 * unit, s, seconds=0.3 * ms, saves_out=True)
        d = t.op(4 * unit, s, seconds=0.3 * ms, saves_out=True)
        a = t.op(unit, d, v, seconds=0.8 * ms, saves=(d, v))
        t.close()
        a = t.leaf(f"{name}.attn.c_proj", unit, a, seconds=0.5 * ms, saves=(a,))
        a = t.leaf(f"{name}.attn.drop", unit, a, seconds=0.1 * ms, saves_out=True)
        t.close()
        y = t.op(unit, x, a, seconds=0.05 * ms)
        n2 = t.leaf(f"{name}.ln_2", unit, y, seconds=0.1 * ms, saves=(y,))
        t.open(f"{name}.mlp")
        u = t.leaf(f"{name}.mlp.c_fc", 4 * unit, n2, seconds=2.0 * ms, saves=(n2,))
        t.open(f"{name}.mlp.act")
        w = u
        for _ in range(12 if fine else 1):
            w = t.op(4 * unit // 4, u, seconds=0.05 * ms, saves_out=True)
        g = t.op(4 * unit, u, w, seconds=0.2 * ms, saves=(u,))
        t.close()
        m = t.leaf(f"{name}.mlp.c_proj", unit, g, seconds=2.0 * ms, saves=(g,))
        m = t.leaf(f"{name}.mlp.drop", unit, m, seconds=0.1 * ms, saves_out=True)
        t.close()
        x = t.op(unit, y, m, seconds=0.05 * ms)
        t.close()
    x = t.leaf("transformer.ln_f", unit, x, seconds=0.1 * ms, saves=(x,))
    t.close()
    logits = t.leaf("lm_head", 8 * unit, x, seconds=2.0 * ms, saves=(x,))
    t.op(8 * unit, logits, seconds=0.5 * ms, saves_out=True)
    t.close()
    return t.problem(static_bytes=50 * unit, gradient_bytes=gradient_bytes, transient_bytes=unit)


def encoder_decoder(n_layers: int = 6, *, unit: int = 4 * 2**20) -> Problem:
    """A T5-like pair of stacks: every decoder block reads what the encoder made, and softmax is saved twice."""
    t = Trace()
    t.open("")
    x = t.op(unit, seconds=0.0)
    t.open("encoder")
    for i in range(n_layers):
        x = _block(t, f"encoder.{i}", x, unit)
    t.close()
    encoded, x = x, t.op(unit, seconds=0.0)
    t.open("decoder")
    for i in range(n_layers):
        x = _block(t, f"decoder.{i}", x, unit, encoded)
    t.close()
    t.leaf("head", 8 * unit, x, seconds=2e-3, saves=(x,), saves_out=True)
    t.close()
    return t.problem(static_bytes=100 * unit, gradient_bytes=20 * unit, transient_bytes=unit)


def _block(t: Trace, name: str, x: int, unit: int, encoded: int | None = None) -> int:
    ms = 1e-3
    t.open(name)
    for part, source in (("attn", None), ("cross", encoded)):
        if part == "cross" and source is None:
            continue
        n = t.leaf(f"{name}.ln_{part}", unit, x, seconds=0.1 * ms, saves=(x,))
        source = n if source is None else source
        t.open(f"{name}.{part}")
        kv = t.leaf(f"{name}.{part}.kv", 2 * unit, source, seconds=0.6 * ms, saves=(source,), saves_out=True)
        s = t.leaf(f"{name}.{part}.softmax", 4 * unit, n, kv, seconds=0.8 * ms, saves=(n,), saves_out=True)
        a = t.leaf(f"{name}.{part}.o", unit, s, kv, seconds=0.7 * ms, saves=(s,))
        t.close()
        x = t.op(unit, x, a, seconds=0.05 * ms)
    n = t.leaf(f"{name}.ln_mlp", unit, x, seconds=0.1 * ms, saves=(x,))
    t.open(f"{name}.mlp")
    h = t.leaf(f"{name}.mlp.up", 4 * unit, n, seconds=2 * ms, saves=(n,), saves_out=True)
    h = t.leaf(f"{name}.mlp.act", 4 * unit, h, seconds=0.2 * ms, saves_out=True)
    h = t.leaf(f"{name}.mlp.down", unit, h, seconds=2 * ms)
    t.close()
    x = t.op(unit, x, h, seconds=0.05 * ms)
    t.close()
    return x


def block_flow(unit: int = 4 * 2**20) -> Dataflow:
    """A GPT-2-like block as units of function and module calls; it reads item 0, and the caller keeps its last item."""
    ms = 1e-3
    units: list[Unit] = []
    sizes = [unit]
    saved: set[int] = set()

    def add(name: str, seconds: float, reads: tuple[int, ...], *out_bytes: int, saves: tuple[int, ...] = ()) -> int:
        """The first output is passed on; the others are for backward alone."""
        made = tuple(range(len(sizes), len(sizes) + len(out_bytes)))
        sizes.extend(out_bytes)
        saved.update(saves, made[1:])
        units.append(Unit(name=name, seconds=seconds * ms, reads=reads, makes=made))
        return made[0]

    n1 = add("ln_1", 0.1, (0,), unit, unit // 192, saves=(0,))
    qkv = add("c_attn", 1.5, (n1,), 3 * unit, saves=(n1,))
    q, k, v = (add("chunk", 0.02, (qkv,), unit) for _ in range(3))
    a = add("attention", 1.2, (q, k, v), unit, unit // 48, saves=(q, k, v))
    b = add("c_proj", 0.5, (a,), unit, saves=(a,))
    d = add("drop", 0.1, (b,), unit, unit // 4)
    y = add("add", 0.05, (0, d), unit)
    n2 = add("ln_2", 0.1, (y,), unit, unit // 192, saves=(y,))
    u = add("c_fc", 2.0, (n2,), 4 * unit, saves=(n2,))
    cube = add("pow", 0.3, (u,), 4 * unit, saves=(u,))
    inner = add("add", 0.5, (u, cube), 4 * unit)
    t = add("tanh", 0.6, (inner,), 4 * unit)
    t1 = add("add", 0.2, (t,), 4 * unit, saves=(t,))
    half = add("mul", 0.2, (u,), 4 * unit)
    g = add("mul", 0.3, (half, t1), 4 * unit, saves=(half, t1))
    m = add("c_proj", 2.0, (g,), unit, saves=(g,))
    m = add("drop", 0.1, (m,), unit, unit // 4)
    add("add", 0.05, (y, m), unit)
    items = tuple(Item(bytes=n, saved=i in saved, free=i == len(sizes) - 1) for i, n in enumerate(sizes))
    return Dataflow(units=tuple(units), items=items)


def menus(n_layers: int = 96, *, unit: int = 4 * 2**20, gradient_bytes: int = 0) -> Problem:
    """Equal blocks in a row, each a call, with all entries of their menu as candidates of the one span."""
    flow = block_flow(unit)
    entries = make_menu(flow)
    n_units, last = len(flow.units), len(flow.items) - 1
    n_forward = n_layers * n_units
    n_steps = 2 * n_forward + 1  # one for the loss in the middle
    touched = [[u for u, one in enumerate(flow.units) if t in (*one.reads, *one.makes)] for t in range(len(flow.items))]
    tensors: list[Tensor] = []
    number: dict[tuple[int, int], int] = {}

    def release(layer: int, t: int) -> int:
        """Step after the backward of the first unit that touches an item."""
        return n_steps - (layer * n_units + touched[t][0])

    for layer in range(n_layers):
        for t, item in enumerate(flow.items):
            if t == 0 and layer:
                number[layer, 0] = number[layer - 1, last]
                continue
            saves = [Save(call=1 + layer, until=release(layer, t))] if item.saved else []
            if t == last and layer + 1 < n_layers and flow.items[0].saved:
                saves.append(Save(call=2 + layer, until=release(layer + 1, 0)))
            dead = (layer + 1 if t == last and layer + 1 < n_layers else layer) * n_units
            dead += max(touched[0] if t == last and layer + 1 < n_layers else touched[t]) + 1
            number[layer, t] = len(tensors)
            tensors.append(Tensor(bytes=item.bytes, free_step=dead, saves=tuple(saves)))

    candidates = []
    for layer in range(n_layers):
        begins, ends = n_steps - (layer + 1) * n_units, n_steps - layer * n_units
        for e, entry in enumerate(entries):
            held = set(flow.held(entry.recompute))
            restored = [t for t, item in enumerate(flow.items) if item.saved and t not in held]
            largest = max(flow.items[t].bytes for u in entry.recompute for t in flow.units[u].makes)
            candidates.append(
                Candidate(
                    name=f"h.{layer}#0 entry {e}",
                    start=1 + layer,
                    stop=2 + layer,
                    length=1,
                    recompute_seconds=entry.recompute_seconds,
                    holds=tuple(Hold(tensor=number[layer, t], until=ends) for t in sorted(held)),
                    additions=(
                        *(
                            Addition(bytes=flow.items[t].bytes, start=begins, until=release(layer, t))
                            for t in restored
                            if not (t == 0 and layer)
                        ),
                        Addition(bytes=largest, start=begins, until=begins + 1),
                    ),
                )
            )
    base = [50 * unit + max(0, s - n_forward) * gradient_bytes // n_forward + 4 * unit for s in range(n_steps)]
    return Problem(
        steps=tuple(Step(name=f"step {s}", base_bytes=n) for s, n in enumerate(base)),
        calls=(
            Call(name="", parent=-1, stop=1 + n_layers),
            *(Call(name=f"h.{layer}#0", parent=0, stop=2 + layer) for layer in range(n_layers)),
        ),
        tensors=tuple(tensors),
        candidates=tuple(candidates),
    )
