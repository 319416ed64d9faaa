"""The profiles of real models that come with autockpt, by bare name. No torch."""

from __future__ import annotations

import difflib
import os
from importlib import resources
from pathlib import Path
from typing import Protocol

import msgspec

from .errors import InvalidFile, UnknownProfile
from .profile import Profile, plain_peak_bytes
from .tables import Recipe

SUFFIX = ".json.gz"
NEAREST = 3


class Readable(Protocol):
    """A file, or a resource of a package that may not lie in one."""

    def read_bytes(self) -> bytes:
        """Return all of it."""
        ...


class RecordedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded profile: what ``autockpt profiles`` says of it.

    Attributes:
        name: what it is called wherever a profile file may be given.
        model: class of the model.
        recipe: batch, precision and optimizer, and the command that records it again.
        mode: how it was recorded, as in the profile.
        device: where it ran, or the named device of the roofline.
        torch_version: version of torch.
        recorded: date and time, ISO 8601.
        plain_peak_bytes: peak of the plain step, recorded where one ran, else predicted.
        plain_seconds: seconds of the plain step, likewise.
    """

    name: str
    model: str
    recipe: Recipe
    mode: str
    device: str
    torch_version: str
    recorded: str
    plain_peak_bytes: int
    plain_seconds: float


def names() -> list[str]:
    """Return the names of all recorded profiles, sorted."""
    return sorted(
        file.name.removesuffix(SUFFIX)
        for file in resources.files("autockpt.profiles").iterdir()
        if file.name.endswith(SUFFIX)
    )


def is_name(path: str | os.PathLike[str]) -> bool:
    """Say whether `path` would be looked up by name: a word with no separator and no suffix that no file is called."""
    file = Path(path)
    return file.name == os.fspath(path) and not file.suffix and (file.is_dir() or not file.exists())


def locate(path: str | os.PathLike[str]) -> Readable:
    """Return the file at `path`, or the recorded profile of that name; a file that exists wins.

    Raises:
        UnknownProfile: it could only be a name, and no recorded profile is called so.
    """
    if not is_name(path):
        return Path(path)
    name, known = os.fspath(path), names()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=NEAREST, cutoff=0.4)
        nearest = "the nearest name is" if len(near) == 1 else "the nearest names are"
        hint = f"; {nearest} {', '.join(map(repr, near))}" if near else ""
        raise UnknownProfile(f"no file and no recorded profile is called {name!r}{hint}. `autockpt profiles` lists all")
    return resources.files("autockpt.profiles") / f"{name}{SUFFIX}"


def recorded_profiles() -> list[RecordedProfile]:
    """Say what each recorded profile is of, in the order of their names."""
    return [_summary(name) for name in names()]


def _summary(name: str) -> RecordedProfile:
    profile = Profile.load(name)
    if profile.recipe is None:
        raise InvalidFile(f"{name} has no recipe, which says how it was recorded")
    said = ("model", "recipe", "mode", "device", "torch_version", "recorded", "plain_seconds")
    told = {field: getattr(profile, field) for field in said}
    peak_bytes = plain_peak_bytes(
        profile.static, profile.tensors, ticks=profile.ticks, optimizer_step_bytes=profile.optimizer_step_bytes
    )
    return RecordedProfile(name=name, plain_peak_bytes=peak_bytes, **told)
