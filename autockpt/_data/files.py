"""Reading and writing the JSON files that users keep: profiles, plans and frontiers; packed by gzip or not."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from ..solvers.units import shown
from .document import Document
from .errors import InvalidFile

S = TypeVar("S", bound="Stored")

GZIP_MAGIC = b"\x1f\x8b"

MAXIMUM_UNPACKED_BYTES = 256 * 2**20
"""A profile of a thousand layers takes a tenth of that; a small file that unpacks to more is a mistake or a trap."""


MOST_SAID = 300
"""Letters of what a decoder says: it quotes names of any length."""


class Stored(Document, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="schema"):
    """Base without fields of documents that are kept in files, each with its schema as the struct's tag."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to `path` as JSON, whole or not at all, packed by gzip where the path ends in ``.gz``."""
        data = encode(self)
        target = Path(path)
        if target.exists() and not target.is_file():  # a device takes it as it goes
            target.write_bytes(data)
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(gzip.compress(data, mtime=0) if target.suffix == ".gz" else data)
            part.replace(target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None  # of the file, not of its part
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls: type[S], path: str | os.PathLike[str]) -> S:
        """Read one that `save` wrote.

        Raises:
            InvalidFile: the file is truncated, of another schema, or contradicts itself.
            OSError: it cannot be read.
        """
        return decode(Path(path).read_bytes(), cls, source=str(path))


def schema_of(kind: type[Stored]) -> str:
    """Return the schema of a kind of document: what it is, a slash, and a version."""
    return str(kind.__struct_config__.tag)


def encode(value: object) -> bytes:
    """Return `value` as one JSON document: one field a line, and one object a line in a list of objects.

    Fields that its class names `RARE` are left out where they are None, so that older versions read the others' files.
    """
    fields = msgspec.json.decode(msgspec.json.encode(value), type=dict[str, msgspec.Raw])
    written = {name: bytes(raw) for name, raw in fields.items()}
    for name in getattr(type(value), "RARE", ()):
        if written[name] == b"null":
            del written[name]
    lines = [b" " + msgspec.json.encode(name) + b": " + _lines(raw) for name, raw in written.items()]
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def _lines(raw: bytes) -> bytes:
    if not raw.startswith(b"[{"):
        return raw
    objects = msgspec.json.decode(raw, type=list[msgspec.Raw])
    return b"[\n  " + b",\n  ".join(bytes(each) for each in objects) + b"\n ]"


def decode(data: bytes, *kinds: type[S], source: str) -> S:
    """Parse and validate JSON `data`, packed or not, as that of the `kinds` whose schema it has.

    Raises:
        InvalidFile: not JSON, another schema than that of the last kind, unknown or missing fields, or contents that
            contradict.
    """
    data, kind = _unpacked(data, source), kinds[-1]
    try:
        found = msgspec.json.decode(data, type=_Head).schema
        same = [each for each in kinds if schema_of(each).partition("/")[0] == found.partition("/")[0]]
        kind = same[0] if same else kind
        if found != schema_of(kind):
            cure = "Record or solve it again." if same else "Give a file of that kind."
            raise InvalidFile(
                f"{source} has schema {shown(found)}; this version of autockpt reads {schema_of(kind)!r} here. {cure}"
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:  # damaged bytes; lists in lists in lists
        said = str(error)
        said = said if len(said) <= MOST_SAID else f"{said[:MOST_SAID]}…"
        raise InvalidFile(f"{source} is not a valid {schema_of(kind)} file: {said}") from None


def _unpacked(data: bytes, source: str) -> bytes:
    """Return `data` without the packing that its first bytes announce; as it is where they announce none."""
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


class _Head(msgspec.Struct):
    """The one field that every file has, read before the rest is judged."""

    schema: str
