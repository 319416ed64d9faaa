"""What a torch function multiplies by something that it saves, so that a replay can multiply again without running it.

    dropout     empty_like ─▶ bernoulli_ ─▶ div_ ─▶ noise ─┐
    argument ──────────────────────────────────────────── mul ─▶ result         autograd saves the noise

The same lies inside attention on a CPU: the softmax and the noise are saved, and so is their product.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..._data.profile import Profile

__all__ = ["MULTIPLIES", "NO_PRODUCTS", "Products", "find_products"]

MULTIPLIES = "aten.mul.Tensor"
"""The operator of whose products there are some that can be made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The products of one torch function.

    Attributes:
        makes: the tensors that are products.
        held: factors that the function made and saves.
        given: factors that it was given.
        seconds: of the multiplications.
    """

    makes: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    given: frozenset[int] = frozenset()
    seconds: float = 0.0


NO_PRODUCTS = Products()


def find_products(profile: Profile) -> dict[int, Products]:
    """Find the torch functions that a replay need not run to have something of what they make.

    Args:
        profile: the recorded step.

    Returns:
        By function, what can be made again by multiplying what the function saves by what it saves or was given.

    O(operators + saves).
    """
    ops, functions, saves = profile.ops, profile.functions, profile.saves
    multiplying = [i for i, name in enumerate(ops.name) if name == MULTIPLIES and ops.function[i] >= 0]
    inside = {ops.function[i] for i in multiplying}
    saved: dict[int, set[int]] = defaultdict(set)  # by operator
    for op, function, tensor, unpack in zip(saves.op, saves.function, saves.tensor, saves.unpack, strict=True):
        if function in inside and op >= 0 and unpack < profile.ticks:
            saved[op].add(tensor)
    maker: dict[int, int] = {}
    written: set[int] = set()
    for i, function in enumerate(ops.function):
        if function in inside:
            maker.update(dict.fromkeys(ops.makes[i], i))
            written.update(ops.writes[i])
    found: dict[int, list[tuple[int, int, int, float]]] = defaultdict(list)
    for i in multiplying:
        f = ops.function[i]
        if functions.alias[f] or functions.mutates[f] or functions.refused[f]:
            continue  # it runs in every replay
        if len(ops.makes[i]) != 1 or len(ops.reads[i]) != 2 or len(saved[i]) != 1:
            continue
        (product,), (noise,) = ops.makes[i], saved[i]
        (other,) = set(ops.reads[i]) - {noise}
        if noise not in maker or ops.function[maker[noise]] != f or product not in functions.makes[f]:
            continue
        result = other in maker and ops.function[maker[other]] == f and other in saved[maker[other]]
        if product not in written and (result or other in functions.reads[f]):
            found[f].append((product, noise, other, ops.seconds[i]))
    return {
        f: Products(
            makes=frozenset(product for product, _, _, _ in products),
            held=frozenset(t for _, *factors, _ in products for t in factors if t not in functions.reads[f]),
            given=frozenset(other for _, _, other, _ in products if other in functions.reads[f]),
            seconds=sum(seconds for *_, seconds in products),
        )
        for f, products in found.items()
    }
