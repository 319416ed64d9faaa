"""Candidates that a rule makes, and no search: for the solver `speed`, blocks but for what multiplies matrices.

functions    ln [c_attn] split [sdpa] [c_proj] dropout add ln [c_fc] gelu [c_proj] dropout      [ ] does not run again

What a function does is told by the operators that ran in it, not by the class of a module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...solvers.dataflow import Dataflow
from ...solvers.errors import InvalidProblem
from .block import state_block
from .book import Book
from .drafts import NOTHING_IDLE, Draft, make_draft
from .idle import name_idle

# fmt: off
PRODUCTS = frozenset((
    "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_int_mm",
    "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "matmul", "chain_matmul", "linalg_multi_dot",
    "multi_dot", "tensordot", "einsum", "linear", "mkldnn_linear", "bilinear", "_trilinear", "lstm", "gru",
    "rnn_tanh", "rnn_relu",
))
# fmt: on
"""Operators by name, and the functions that stand for theirs where a profile could not tell them apart."""

PARTS = ("conv", "attention", "attn", "_rnn")
"""What names of other such operators contain: ``cudnn_convolution``, ``_scaled_dot_product_flash_attention``."""


def multiplies(operator: str) -> bool:
    """Whether an operator's work is multiplying matrices: products, convolutions, attention, recurrent cells.

    Args:
        operator: its name as profiles write it: ``aten.mm.default``, or that of a function.
    """
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name in PRODUCTS or (any(part in name for part in PARTS) and "convert" not in name)


def speed_drafts(book: Book, calls: Iterable[int], replayable: Collection[int]) -> list[Draft]:
    """Recompute each call but for its matrix products, convolutions and attention.

    Args:
        book: the profile.
        calls: the calls, such as the blocks of a model.
        replayable: those of all calls that can be recomputed.

    Returns:
        A draft a call, of the whole call where nothing in it multiplies; none where nothing else is saved. Where a
        call cannot be recomputed, or a product in it not be kept, those of the calls inside it.
    """
    ops = book.profile.ops
    products: set[int] = set()
    unseen: set[int] = set()  # calls that multiply outside any function, which a replay does in any case
    for f, call, name in zip(ops.function, ops.call, ops.name, strict=True):
        if multiplies(name):
            products.add(f)
            if f < 0:
                unseen.add(call)
    known: dict[tuple[object, ...], frozenset[int] | None] = {}  # by what is equal in equal calls, as offsets
    drafts = []
    left = list(calls)
    while left:
        call = left.pop()
        own = book.functions_of(call)
        kept = tuple(f - own.start for f in own if f in products)
        names = book.profile.functions.name[own.start : own.stop]
        key = (book.profile.calls[call].signature, names, kept, book.fates((call,)))
        if key not in known:
            known[key] = _left_alone(book, call, kept)
        alone = known[key]
        if call not in replayable or alone is None or not unseen.isdisjoint(range(call, book.profile.calls[call].stop)):
            left += book.children[call]
        else:
            idle = name_idle(book, (call,), {own.start + offset for offset in alone}) if alone else NOTHING_IDLE
            draft = make_draft(book, (call,), idle)
            if draft is not None:
                drafts.append(draft)
    return drafts


def _left_alone(book: Book, call: int, kept: tuple[int, ...]) -> frozenset[int] | None:
    """Functions of a call, as offsets, that do not run again if none of `kept` does.

    None where that cannot be, or where nothing is left to run again.
    """
    if not kept:
        return frozenset()
    block = state_block(book, (call,))
    if block is None:
        return None
    again = _needed(block.flow, {unit for unit, row in enumerate(block.rows) if row in kept})
    try:
        block.flow.decisions(again)
    except InvalidProblem:  # something kept is changed in place by what runs again
        return None
    return block.idle(again) if again else None


def _needed(flow: Dataflow, kept: set[int]) -> set[int]:
    """Units that bring back what backward needs if those of `kept` do not run again."""
    stays = {flow.groups[unit] for unit in kept}
    wanted = {t for t, item in enumerate(flow.items) if item.saved}
    again: set[int] = set()
    while True:
        groups = {flow.groups[unit] for t in wanted for unit in flow.makers[t]} - stays
        more = {unit for unit, group in enumerate(flow.groups) if group in groups}
        if more == again:
            return again
        again = more
        wanted |= {t for unit in again for t in flow.units[unit].reads}
