"""Planted faults as data: one line of one file each, as it stands and as it becomes. Needs no torch.

a sentence    what is wrong then
file          where
before        the line as it stands, which stands there once
after         the line in its place, as far to the right
found         the tests that are expected to fail
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PARTS", "Fault", "faults"]

PARTS = ("recording", "choosing", "frames", "comparing", "stash", "train")

_FIELDS = ("file", "before", "after", "found")


class DoesNotApply(ValueError):
    """The line of a fault is not in its file, or is there more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of one line.

    Attributes:
        says: what is wrong with it, in a sentence.
        part: what of the library it is in, one of `PARTS`.
        file: the file, from the root of the repository.
        before: the line as it stands, without what it is indented by.
        after: the line that takes its place.
        found: the tests that are expected to find it: files, or functions in them.
    """

    says: str
    part: str
    file: str
    before: str
    after: str
    found: tuple[str, ...]

    def planted_in(self, source: str) -> str:
        """Return the source of its file with the fault in it.

        Raises:
            DoesNotApply: the line is not there, or more than once.
        """
        lines = source.splitlines(keepends=True)
        places = [number for number, line in enumerate(lines) if line.strip() == self.before]
        if len(places) != 1:
            raise DoesNotApply(
                f"{self.file} has the line {self.before!r} {len(places)} times, and a fault needs it once. "
                "Write the line into tests/planted as it stands now, or plant a fault like it elsewhere."
            )
        line = lines[places[0]]
        lines[places[0]] = line.replace(self.before, self.after)
        return "".join(lines)


def faults() -> list[Fault]:
    """Read the planted faults, part by part."""
    found = []
    for part in PARTS:
        text = Path(__file__).with_name(f"{part}.txt").read_text()
        found += [_fault(part, block.splitlines()) for block in text.strip().split("\n\n")]
    return found


def _fault(part: str, lines: list[str]) -> Fault:
    says, *rows = lines
    file, before, after, found = (row.removeprefix(name).strip() for name, row in zip(_FIELDS, rows, strict=True))
    return Fault(says=says, part=part, file=file, before=before, after=after, found=tuple(found.split()))
