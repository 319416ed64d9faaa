"""Reading and writing the JSON files that users keep: profiles, plans and frontiers; packed by gzip or not."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from ..solvers.units import shown
from .errors import InvalidFile
from .text.document import Document
from .text.door import door

S = TypeVar("S", bound="Stored")

GZIP_MAGIC = b"\x1f\x8b"

MAXIMUM_BYTES = 256 * 2**20
"""A profile of a thousand layers takes a tenth of that; what is larger, packed or not, is a mistake or a trap."""

MOST_SAID = 300
"""Letters of what a decoder says: it quotes names of any length."""


class Stored(Document, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="schema"):
    """Base without fields of documents that are kept in files, each with its schema as the struct's tag."""

    @door
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to `path` as JSON, whole or not at all, packed by gzip where the path ends in ``.gz``.

        Raises:
            InvalidFile: there can be no such path.
            OSError: it cannot be written.
        """
        data = encode(self)
        target = _possible(path)
        if target.exists() and not target.is_file():  # a device takes it as it goes
            target.write_bytes(data)
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(gzip.compress(data, mtime=0) if target.suffix == ".gz" else data)
            part.replace(target)
        except OSError as error:
            raise _of(path, error) from None  # not of its part
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    @door
    def load(cls: type[S], path: str | os.PathLike[str]) -> S:
        """Read one that `save` wrote.

        Raises:
            InvalidFile: the file is truncated, of another schema, or contradicts itself; or it is too large, no regular
                file, or `path` can be none.
            OSError: it cannot be read.
        """
        return decode(read(path), cls, source=str(path))


def read(path: str | os.PathLike[str]) -> bytes:
    """Return what is in the regular file at `path`. No more than `MAXIMUM_BYTES` is ever read.

    Raises:
        InvalidFile: it is too large, or no regular file, which might block or never end; or `path` can be none.
        OSError: it cannot be read.
    """
    source = str(path)
    try:
        with _opened(path, source) as file:
            return read_from(file, source)
    except OSError as error:
        raise _of(path, error) from None


def _opened(path: str | os.PathLike[str], source: str) -> IO[bytes]:
    """Open the regular file at `path`, or refuse it."""
    found = _possible(path).stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):  # to open a directory is an error of its own
        raise InvalidFile(
            f"{source} is no regular file but {_kind(found.st_mode)}, which might block or never end, and is not read. "
            "Copy what comes from it to a file and give that; the command line reads a pipe where - is given."
        )
    if stat.S_ISREG(found.st_mode) and found.st_size > MAXIMUM_BYTES:
        raise too_large(source, f"has {found.st_size:,} bytes")
    return Path(path).open("rb")


def read_from(file: IO[bytes], source: str) -> bytes:
    """Return what is left in an open file.

    Raises:
        InvalidFile: it is more than `MAXIMUM_BYTES`; no more is read.
    """
    data = file.read(MAXIMUM_BYTES + 1)
    if len(data) > MAXIMUM_BYTES:
        raise too_large(source, f"has more than {MAXIMUM_BYTES:,} bytes")
    return data


def too_large(source: str, found: str) -> InvalidFile:
    """Return the error for a file of which was `found` how large it is, in words."""
    return InvalidFile(
        f"{source} {found}. At most {MAXIMUM_BYTES:,} are read, ten times what a step of a thousand layers takes. Give "
        "the file that `save` wrote."
    )


def _of(path: str | os.PathLike[str], error: OSError) -> OSError:
    """Return the error as one of the file at `path`, which no other code raised: `door` shows no frames of it."""
    return OSError(error.errno, error.strerror, os.fspath(path))


def _possible(path: str | os.PathLike[str]) -> Path:
    """Return the path, or refuse one that no file can have: with a null character in it."""
    if "\0" in os.fspath(path):
        raise InvalidFile(f"{shown(os.fspath(path))} can be no path of a file: it has a null character in it.")
    return Path(path)


def _kind(mode: int) -> str:
    kinds = {stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "something else")


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
        InvalidFile: not JSON, a schema of none of the kinds or of another version, unknown or missing fields, or
            contents that contradict.
    """
    data = _unpacked(data, source)
    kind = kinds[-1]  # named where the schema is of none
    try:
        found = msgspec.json.decode(data, type=_Head).schema
        same = [each for each in kinds if schema_of(each).partition("/")[0] == found.partition("/")[0]]
        kind = same[0] if same else kind  # of another version
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
            unpacked = file.read(MAXIMUM_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise InvalidFile(f"{source} is packed by gzip and damaged: {error}") from None
    if len(unpacked) > MAXIMUM_BYTES:
        raise too_large(source, f"unpacks to more than {MAXIMUM_BYTES:,} bytes")
    return unpacked


class _Head(msgspec.Struct):
    """The one field that every file has, read before the rest is judged."""

    schema: str
