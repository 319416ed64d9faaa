"""How bytes and seconds grow with the size of a batch, from their values at two sizes.

A size is one whole number for each dimension of the inputs that varies: samples; samples and tokens. The bytes of a
tensor are a product of what its dimensions are, so that nearly all grow as a *power* of the size, a product of powers
of its numbers:

    parameters' gradients   1          attention scores      samples · tokens²
    a mask                  tokens²    everything else       samples · tokens

The ratio of a tensor's bytes at the two sizes tells which.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

from ..._data.errors import GrowthError

Size = tuple[int, ...]

HIGHEST_POWER = 2
"""Of one number of a size: nothing grows faster with samples, tokens or pixels."""


def sized(size: object) -> Size:
    """Return a size, which may be given as one number, as a number for each dimension.

    Raises:
        GrowthError: it is not made of positive whole numbers.
    """
    numbers = size if isinstance(size, tuple) else (size,)
    if not numbers or not all(isinstance(number, int) and number >= 1 for number in numbers):
        raise GrowthError(f"a size is a positive whole number, or a tuple of them, one a dimension; this is {size!r}")
    return numbers


class Laws:
    """What bytes and seconds known at two sizes are at a third.

    Args:
        first: a size.
        second: another; which is larger does not matter.
        wanted: the size to tell.

    Raises:
        GrowthError: the two sizes do not tell how things grow in the direction of the third: a dimension varies that
            they have in common, or dimensions go apart that varied by the same ratio.
    """

    def __init__(self, first: Size, second: Size, wanted: Size) -> None:
        self._powers: dict[Fraction, Fraction] = {}  # growth from the first size to the second, and to the wanted one
        for exponents in itertools.product(range(HIGHEST_POWER + 1), repeat=len(first)):
            growth, value = _power(first, second, exponents), _power(first, wanted, exponents)
            if self._powers.setdefault(growth, value) != value:
                raise GrowthError(
                    f"sizes {first} and {second} do not tell what size {wanted} needs: between them every dimension "
                    "that varies must have a ratio of its own. Record one of the two where they differ by other "
                    "ratios, or give as the size the product of dimensions that always vary together"
                )
        ones = (1,) * len(first)
        self._product = _power(first, second, ones), _power(first, wanted, ones)
        low, high = sorted((first[0], second[0]))
        self._chord = len(first) == 1 and low <= wanted[0] <= high
        self._known: dict[tuple[int, int], int] = {}

    def bytes(self, first: int, second: int) -> int:
        """Return the bytes of something that has `first` and `second` bytes at the two sizes.

        Equal bytes are constant. Where their ratio is that of a power of the size they are proportional to it, which
        is exact. Otherwise (an offset: one token more, one label less; a sum of powers; rounding by an allocator) they
        are an offset and a multiple of the power whose ratio is nearest; but between two sizes of one dimension a
        straight line, which lies above any sum of powers. What shrinks where a size grows is taken to go on at the
        nearer of its values beyond them.
        """
        if (first, second) not in self._known:
            self._known[first, second] = max(math.ceil(self._bytes(first, second)), min(first, second, 0))
        return self._known[first, second]

    def _bytes(self, first: int, second: int) -> Fraction | int:
        if first == second:
            return first
        if first and (value := self._powers.get(Fraction(second, first))) is not None:
            return first * value
        growth, value = self._product
        if first * second > 0 and not self._chord:
            distance = math.log(second / first)
            growths = (growth for growth in self._powers if growth != 1)
            growth = min(growths, key=lambda growth: abs(math.log(growth) - distance))
            value = self._powers[growth]
        if growth == 1:
            return max(first, second)
        if (second > first) != (growth > 1):
            value = min(max(value, min(growth, Fraction(1))), max(growth, Fraction(1)))
        return first + (second - first) * (value - 1) / (growth - 1)

    def seconds(self, first: float, second: float) -> float:
        """Return the seconds of something that takes `first` and `second` seconds at the two sizes.

        A straight line in the product of the dimensions, below both sizes no steeper than proportional; where the
        clock says that more takes less time, their mean at every size. Never negative, and never falling.
        """
        growth, value = map(float, self._product)
        if growth == 1:
            return (first + second) / 2 * value
        slope = (second - first) / (growth - 1)
        if slope <= 0:
            return (first + second) / 2
        low = min(growth, 1.0)
        if value < low and first < slope:  # the line would fall below 0 on its way to size 0
            return min(first, second) * value / low
        return first + slope * (value - 1)


def _power(first: Size, other: Size, exponents: tuple[int, ...]) -> Fraction:
    """How much greater a product of powers is at another size than at the first."""
    ratios = (Fraction(there, here) ** exponent for here, there, exponent in zip(first, other, exponents, strict=True))
    return math.prod(ratios, start=Fraction(1))
