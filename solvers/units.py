"""Amounts as people write them: ``"8GB"`` to bytes, and bytes and seconds to text."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable
from fractions import Fraction

from .refusals import BudgetError

_UNITS = {"b": 1} | {f"{x}b": 10 ** (3 * i) for i, x in enumerate("kmgt", 1)}
_UNITS |= {f"{x}ib": 2 ** (10 * i) for i, x in enumerate("kmgt", 1)}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?([a-z]*|%)", re.IGNORECASE | re.ASCII)
_ACCEPTED = 'accepted: bytes as a positive int, or text such as "8GB", "8GiB" or "80%" of the device\'s memory'
_MOST_LETTERS = 40  # of an amount: Python itself refuses to read thousands of digits
_MOST_BYTES = 2**63 - 1  # of any address, and of what files and solvers count with


def parse_bytes(amount: int | str, *, total_bytes: int | None = None) -> int:
    """Turn a budget as people write it into bytes, rounding down.

    Upper and lower case mean the same: a budget in bits does not exist, so ``8gb`` is ``8GB``. ``GB`` is
    10⁹ and ``GiB`` 2³⁰ bytes, at every size from ``KB`` to ``TB``. One space may stand before the unit.

    Args:
        amount: bytes as an int, or a number with a unit, or a share in percent.
        total_bytes: what a share in percent is taken of; None where no total is known.

    Returns:
        A positive number of bytes.

    Raises:
        BudgetError: the amount does not parse, is not positive, is above 2⁶³ bytes or 100 %, or is a share and no
            total is known.

    Example:
        >>> from autockpt.solvers import parse_bytes
        >>> parse_bytes("8GB"), parse_bytes("1.5 GiB"), parse_bytes("80%", total_bytes=1000)
        (8000000000, 1610612736, 800)
    """
    if isinstance(amount, int) and not isinstance(amount, bool):
        return _positive(amount, amount)
    short = isinstance(amount, str) and len(amount.strip()) <= _MOST_LETTERS
    match = _AMOUNT.fullmatch(amount.strip()) if isinstance(amount, str) and short else None
    if match is None:
        raise BudgetError(f"cannot read {shown(amount)} as a budget{_meant(amount)}; {_ACCEPTED}")
    number, unit = Fraction(match[1]), match[2].lower()
    if unit == "%":
        if number > 100:
            raise BudgetError(f"a budget of {amount!r} is more than the whole; {_ACCEPTED}")
        if type(total_bytes) is not int or total_bytes <= 0:
            raise BudgetError(
                f"a budget of {amount!r} needs a device whose memory is known, and there is none here; "
                'give bytes, such as "8GB"'
            )
        return _positive(math.floor(number * total_bytes / 100), amount)
    if unit and unit not in _UNITS:
        meant = f"{match[1]}{unit.upper()}B" if f"{unit}b" in _UNITS else ""
        hint = f"did you mean {meant!r}? " if meant else ""
        raise BudgetError(f"unknown unit {match[2]!r} in the budget {amount!r}; {hint}{_ACCEPTED}")
    return _positive(math.floor(number * _UNITS[unit or "b"]), amount)


def _positive(n_bytes: int, amount: int | str) -> int:
    if n_bytes <= 0:
        raise BudgetError(f"a budget must be at least one byte, got {shown(amount)}{_meant(amount)}; {_ACCEPTED}")
    if n_bytes > _MOST_BYTES:
        raise BudgetError(f"a budget of {shown(amount)} is more bytes than any memory has; {_ACCEPTED}")
    return n_bytes


def _meant(amount: object) -> str:
    """Guess what a number that is no budget was meant to be, for a message; empty where nothing suggests itself."""
    if isinstance(amount, str) and re.fullmatch(r"0?\.[0-9]{1,6}", amount.strip(), re.ASCII):
        return f"; did you mean '{_percent(float(amount))}'"
    if isinstance(amount, (bool, int)) or not isinstance(amount, (numbers.Real, float)) or not math.isfinite(amount):
        return ""
    if 0 < float(amount) < 1:
        return f"; did you mean '{_percent(float(amount))}'"
    return f"; as a whole number: int({shown(amount)})"


def _percent(share: float) -> str:
    return f"{100 * share:.6g}%"


def shown(value: object, most: int = 60) -> str:
    """Write what a user gave for a message: on one line, cut short, whatever its own ``repr`` does.

    Example:
        >>> from autockpt.solvers.units import shown
        >>> shown("8 bananas"), shown("9" * 5000, 10)
        ("'8 bananas'", "'99999999…")
    """
    try:
        text = re.sub(r"\s*\n\s*", " ", repr(value))
    except Exception:  # the repr of an int with thousands of digits raises, and a user's may
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def listed(names: Iterable[object], most: int = 6) -> str:
    """Write names for a message: the first ones, and how many more there are.

    Example:
        >>> from autockpt.solvers.units import listed
        >>> listed(["h.0", "h.1"]), listed(["h.0", "h.1", "h.2"], 2)
        ("'h.0', 'h.1'", "'h.0', 'h.1' and 1 more")
    """
    every = list(names)
    first = ", ".join(shown(name) for name in every[:most])
    return f"{first} and {len(every) - most} more" if len(every) > most else first


def is_decimal(amount: object) -> bool:
    """Whether an amount is text in powers of ten, such as ``"8GB"``: then answers are too.

    Example:
        >>> from autockpt.solvers.units import is_decimal
        >>> is_decimal("8GB"), is_decimal("8GiB"), is_decimal(8_000_000_000)
        (True, False, False)
    """
    return isinstance(amount, str) and re.search(r"[kmgt]b\s*$", amount, re.IGNORECASE) is not None


def in_unit_of(n_bytes: int, amount: object) -> int | str:
    """Return bytes as a budget in the unit of `amount`, exact to the byte, if that is a power of ten; else as a number.

    Example:
        >>> from autockpt.solvers.units import in_unit_of
        >>> in_unit_of(23_280_000_000, "24GB"), in_unit_of(23_280_000_000, "22GiB")
        ('23.28GB', 23280000000)
    """
    if not is_decimal(amount):
        return n_bytes
    unit = str(amount).strip()[-2:]
    size = _UNITS[unit.lower()]
    whole, rest = divmod(n_bytes, size)
    return f"{whole}.{rest:0{len(str(size)) - 1}d}".rstrip("0").rstrip(".") + unit


def format_bytes(n_bytes: int, *, decimal: bool = False) -> str:
    """Write bytes for people, in the largest unit that leaves at least 1 in front.

    Args:
        n_bytes: how many.
        decimal: in powers of ten, GB and not GiB.

    Example:
        >>> from autockpt.solvers import format_bytes
        >>> format_bytes(1610612736), format_bytes(512), format_bytes(1610612736, decimal=True)
        ('1.50 GiB', '512 B', '1.61 GB')
    """
    for unit in ("TB", "GB", "MB", "KB") if decimal else ("TiB", "GiB", "MiB", "KiB"):
        if abs(n_bytes) >= _UNITS[unit.lower()]:
            return f"{n_bytes / _UNITS[unit.lower()]:.2f} {unit}"
    return f"{n_bytes} B"


def format_like(n_bytes: int, amount: object) -> str:
    """Write bytes for people, in powers of ten where `amount`, as a user wrote it, is.

    Example:
        >>> from autockpt.solvers.units import format_like
        >>> format_like(1610612736, "8GB"), format_like(1610612736, "8GiB")
        ('1.61 GB', '1.50 GiB')
    """
    return format_bytes(n_bytes, decimal=is_decimal(amount))


def at_least(n_bytes: int, *, decimal: bool = False) -> str:
    """Write a budget of at least so many bytes, and hardly more, as people would.

    Example:
        >>> from autockpt.solvers.units import at_least, parse_bytes
        >>> at_least(25190472, decimal=True), at_least(25190472), at_least(700)
        ('25.2MB', '24.1MiB', '700B')
    """
    for unit in ("tb", "gb", "mb", "kb") if decimal else ("tib", "gib", "mib", "kib"):
        size = _UNITS[unit]
        if n_bytes >= size:
            steps = 10 if n_bytes >= 10 * size else 100
            number = f"{math.ceil(Fraction(n_bytes * steps, size)) / steps:.10g}"
            return number + unit.upper().replace("I", "i")
    return f"{n_bytes}B"


def format_seconds(seconds: float) -> str:
    """Write seconds for people, with three digits that count.

    Example:
        >>> from autockpt.solvers import format_seconds
        >>> format_seconds(0.0123), format_seconds(2.5), format_seconds(4e-6)
        ('12.3 ms', '2.5 s', '4 µs')
    """
    if abs(seconds) >= 100:
        return f"{seconds:.0f} s"
    if abs(seconds) >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.3g} µs"
