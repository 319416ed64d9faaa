"""One archive a stage, small enough to come back from a lent machine."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LIMIT_BYTES", "archive_name", "pack"]

LIMIT_BYTES = 15 * 2**20
"""Of an archive: where 16 MiB is the limit of a file, this leaves room for its own tables."""


def archive_name(stage: int, device: str) -> str:
    """Name the archive of a stage on a device: what ran where cannot be mistaken."""
    return f"stage{stage}-{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.tar.gz"


def pack(stage: int, folder: Path, to: Path, *, limit_bytes: int = LIMIT_BYTES) -> list[str]:
    """Pack what a stage wrote, the smaller files first, as far as it fits; whole or not at all.

    Args:
        stage: its number.
        folder: where it wrote.
        to: the archive.
        limit_bytes: how large it may become.

    Returns:
        What was left out.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    unfinished, left_out = to.with_suffix(".partial"), []
    with unfinished.open("wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for path in sorted(_files(stage, folder), key=_rank):
            # What does not shrink at all must fit too, beside what the compressor still holds back.
            if file.tell() + path.stat().st_size + 2**16 > limit_bytes:
                left_out.append(f"{path.relative_to(folder)} ({path.stat().st_size / 2**20:.1f} MiB)")
                continue
            archive.add(path, arcname=f"{to.name.partition('.')[0]}/{path.relative_to(folder)}")
    unfinished.replace(to)
    return left_out


def _rank(path: Path) -> tuple[bool, int]:
    """Rows come first, whatever their size."""
    return path.suffix != ".json" or not path.name.startswith("stage"), path.stat().st_size


def _files(stage: int, folder: Path) -> Iterator[Path]:
    for path in (folder / f"stage{stage}.json", folder / f"stage{stage}.log", folder / f"stage{stage}.md"):
        if path.exists():
            yield path
    yield from (path for path in (folder / f"stage{stage}").rglob("*") if path.is_file())
