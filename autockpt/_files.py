"""Reading and writing the JSON files that users keep: profiles, plans and frontiers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from ._errors import InvalidFile

T = TypeVar("T", bound=msgspec.Struct)


def encode(value: msgspec.Struct) -> bytes:
    """Return `value` as one JSON document: one field a line, and one object a line in a list of objects."""
    fields = msgspec.json.decode(msgspec.json.encode(value), type=dict[str, msgspec.Raw])
    lines = [b" " + msgspec.json.encode(name) + b": " + _lines(bytes(raw)) for name, raw in fields.items()]
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def _lines(raw: bytes) -> bytes:
    if not raw.startswith(b"[{"):
        return raw
    objects = msgspec.json.decode(raw, type=list[msgspec.Raw])
    return b"[\n  " + b",\n  ".join(bytes(each) for each in objects) + b"\n ]"


def save(value: msgspec.Struct, path: str | os.PathLike[str]) -> None:
    """Write `value` to `path` as JSON; see `write`."""
    write(encode(value), path)


def write(data: bytes, path: str | os.PathLike[str]) -> None:
    """Write `data` to `path`, whole or not at all; into a pipe or a device as it goes."""
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def decode(data: bytes, kind: type[T], *, source: str) -> T:
    """Parse and validate JSON `data` as a `kind`.

    Raises:
        InvalidFile: not JSON, another schema, unknown or missing fields, or contents that contradict.
    """
    schema = getattr(kind, "SCHEMA")  # noqa: B009  (a ClassVar that msgspec.Struct does not declare)
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema != schema:
            raise InvalidFile(
                f"{source} has schema {head.schema!r}; this version of autockpt reads {schema!r}. "
                "Record or solve it again."
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidFile(f"{source} is not a valid {schema} file: {error}") from None


def load(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read a `kind` from the JSON file at `path`.

    Raises:
        InvalidFile: see `decode`.
        OSError: the file cannot be read.
    """
    return decode(Path(path).read_bytes(), kind, source=str(path))


class _Head(msgspec.Struct):
    """The one field that every file has, read before the rest is judged."""

    schema: str
