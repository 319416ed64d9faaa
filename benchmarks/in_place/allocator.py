"""Read torch's allocator for the CPU from outside of torch: `allocator.c`, compiled and loaded before libc."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")

LOADED = "LD_PRELOAD"


def environment_with_reader() -> dict[str, str]:
    """Compile the reader, once per folder of temporary files; return an environment whose processes have it."""
    folder = Path(tempfile.gettempdir()) / f"autockpt-allocator-{os.getuid()}-{SOURCE.stat().st_mtime_ns}"
    library = folder / "allocator.so"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        built = folder / f"{os.getpid()}.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", built, SOURCE, "-ldl", "-lpthread"], check=True)
        built.rename(library)
    return os.environ | {LOADED: str(library)}


class Allocator:
    """What the allocator holds, in bytes; only in a process of `environment_with_reader`."""

    def __init__(self) -> None:
        if "allocator" not in os.environ.get(LOADED, ""):
            sys.exit("started without the reader: run `python -m benchmarks.in_place.run`")
        library = ctypes.CDLL(None)
        self._level, self._peak, self._begin = (
            library.allocator_level,
            library.allocator_peak,
            library.allocator_begin,
        )
        self._level.restype = self._peak.restype = ctypes.c_size_t

    def level_bytes(self) -> int:
        """What it holds now."""
        return int(self._level())

    def begin(self) -> None:
        """Let the highest level be that of now."""
        self._begin()

    def peak_bytes(self) -> int:
        """The highest level since `begin`."""
        return int(self._peak())
