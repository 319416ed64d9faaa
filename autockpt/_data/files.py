"""Reading and writing the JSON files that users keep: profiles, plans and frontiers; packed by gzip or not."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import InvalidFile

T = TypeVar("T", bound=msgspec.Struct)

GZIP_MAGIC = b"\x1f\x8b"

MAXIMUM_UNPACKED_BYTES = 256 * 2**20
"""A profile of a thousand layers takes a tenth of that; a small file that unpacks to more is a mistake or a trap."""


def encode(value: object) -> bytes:
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
    """Write `value` to `path` as JSON, whole or not at all, packed if it ends in ``.gz``; into a device as it goes."""
    data = encode(value)
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_bytes(pack(data) if target.suffix == ".gz" else data)
        part.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None  # of the file, not of its part
    finally:
        part.unlink(missing_ok=True)


def pack(data: bytes) -> bytes:
    """Return `data` packed by gzip; the same data always packs to the same bytes, with no time or name in them."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=packed, mtime=0) as file:
        file.write(data)
    return packed.getvalue()


def unpack(data: bytes, *, source: str) -> bytes:
    """Return `data` without the packing that its first bytes announce; as it is where they announce none.

    Raises:
        InvalidFile: it is damaged, or unpacks to more than `MAXIMUM_UNPACKED_BYTES`.
    """
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(MAXIMUM_UNPACKED_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise InvalidFile(f"{source} is packed by gzip and damaged: {error}") from None
    if len(unpacked) > MAXIMUM_UNPACKED_BYTES:
        raise InvalidFile(
            f"{source} unpacks to more than {MAXIMUM_UNPACKED_BYTES:,} bytes, far more than a recorded step takes. "
            "If it is one all the same, unpack it with gunzip and give the unpacked file."
        )
    return unpacked


def decode(data: bytes, kind: type[T], *, source: str) -> T:
    """Parse and validate JSON `data`, packed or not, as a `kind`.

    Raises:
        InvalidFile: not JSON, another schema, unknown or missing fields, or contents that contradict.
    """
    data = unpack(data, source=source)
    schema = getattr(kind, "SCHEMA")  # noqa: B009  (a ClassVar that msgspec.Struct does not declare)
    try:
        found = msgspec.json.decode(data, type=_Head).schema
        if found != schema:
            same_kind = found.partition("/")[0] == schema.partition("/")[0]
            cure = "Record or solve it again." if same_kind else "Give a file of that kind."
            raise InvalidFile(f"{source} has schema {found!r}; this version of autockpt reads {schema!r} here. {cure}")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:  # damaged bytes; lists in lists in lists
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
