"""Reads what a verb is given: a recorded profile, a file, stdin, or a function, whose model's step is recorded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar, cast

from .._data import files, shipped
from .._data.errors import UnknownProfile
from .._data.frontier import Frontier
from .._data.plan import Plan
from .._data.profile import Profile
from .recording import UNASKED, HowRecorded, record
from .target import names_function
from .verb import Misuse

D = TypeVar("D", bound=Plan | Frontier | Profile)


def load(source: str, *kinds: type[D], how: HowRecorded = UNASKED) -> D:
    """Return the document that `source` names, as the kind whose schema it has.

    Args:
        source: the name of a recorded profile, a file, ``-`` for stdin, or ``file.py:function``.
        kinds: what it may be. If it has the schema of none, the error names that of the last kind.
        how: how to record a step of the function's model.

    Raises:
        InvalidFile: the document is damaged, or of another kind.
        Misuse: `source` cannot be read, imported or called.
        UnknownProfile: `source` is a bare word, and neither a file nor a recorded profile has that name.
    """
    if source.endswith(".py") and Path(source).exists():
        raise Misuse(f"{source} is a programme: name the function in it that makes the model, {source}:build")
    if Profile in kinds and names_function(source):
        return cast("D", record(source, how))
    if source == "-" and sys.stdin is None:
        raise Misuse("cannot read -: standard input is closed")
    name = "<stdin>" if source == "-" else source
    try:
        data = files.read_from(sys.stdin.buffer, name) if source == "-" else shipped.read(source)
    except UnknownProfile:  # it is an OSError as well
        raise
    except OSError as error:
        raise Misuse(f"cannot read {source}: {error.strerror}") from error
    return files.decode(data, *kinds, source=name)
