"""Reading what a verb is given: a recorded profile, a file, stdin, or a function of whose model a step is recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar, cast

from .._data import files, shipped
from .._data.errors import UnknownProfile
from .._data.frontier import Frontier
from .._data.plan import Plan
from .._data.profile import Profile
from .target import record
from .verb import Misuse

D = TypeVar("D", bound=Plan | Frontier | Profile)


def load(source: str, *kinds: type[D]) -> D:
    """Return the document that `source` names, of the kind whose schema it has; else the last kind says why not.

    Args:
        source: the name of a recorded profile, a file, ``-`` for stdin, or ``file.py:function``.
        kinds: what it may be.

    Raises:
        InvalidFile: it is damaged, or of another kind.
        Misuse: it cannot be read, imported or called.
        UnknownProfile: it is a bare word, and neither a file nor a recorded profile is called so.
    """
    if Profile in kinds and ":" in source and not Path(source).exists():
        return cast("D", record(source))
    name = "<stdin>" if source == "-" else source
    return files.decode(_read(source), *kinds, source=name)


def _read(source: str) -> bytes:
    try:
        if source != "-":
            return shipped.read(source)
        if sys.stdin is None:
            raise Misuse("cannot read -: standard input is closed")
        return sys.stdin.buffer.read()
    except UnknownProfile:  # an OSError too
        raise
    except OSError as error:
        raise Misuse(f"cannot read {source}: {error.strerror}") from error
