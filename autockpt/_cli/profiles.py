"""``autockpt profiles``: the recorded profiles that come with it. Imports no torch."""

from __future__ import annotations

from .._data.shipped import recorded_profiles
from .._show.explain import RecordedReport, recorded_text
from .verb import Result, verb


@verb("autockpt profiles", "autockpt profiles --json")
def profiles() -> Result:
    """List the recorded profiles of real models that come with autockpt.

    Each name can be given wherever a profile file can, as in autockpt solve gpt2-xl --budget 24GiB.
    """
    report = RecordedReport(profiles=tuple(recorded_profiles()))
    return Result(report, lambda width: recorded_text(report, width=width))
