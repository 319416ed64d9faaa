"""The profiles of real models that come with autockpt, by bare name. No torch."""

from __future__ import annotations

import difflib
import os
from importlib import resources
from pathlib import Path

from . import files
from .errors import UnknownProfile

SUFFIX = ".json.gz"


def names() -> list[str]:
    """Return the names of all recorded profiles, sorted."""
    found = (file.name for file in resources.files("autockpt.profiles").iterdir())
    return sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX))


def is_name(path: str | os.PathLike[str]) -> bool:
    """Say whether `path` would be looked up by name: a word with no separator and no suffix that no file is called."""
    file = Path(path)
    return file.name == os.fspath(path) and not file.suffix and (file.is_dir() or not file.exists())


def read(path: str | os.PathLike[str]) -> bytes:
    """Return what is in the file at `path`, or in the recorded profile of that name; a file that exists wins.

    Raises:
        UnknownProfile: it could only be a name, and no recorded profile is called so.
        InvalidFile, OSError: as for `files.read`.
    """
    if not is_name(path):
        return files.read(path)
    name, known = os.fspath(path), names()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, cutoff=0.4)
        nearest = "the nearest name is" if len(near) == 1 else "the nearest names are"
        hint = f"; {nearest} {', '.join(map(repr, near))}" if near else ""
        raise UnknownProfile(f"no file and no recorded profile is called {name!r}{hint}. `autockpt profiles` lists all")
    return (resources.files("autockpt.profiles") / f"{name}{SUFFIX}").read_bytes()
