"""``autockpt profiles``: the recorded profiles that come with it. Imports no torch."""

from __future__ import annotations

from ..._data import shipped
from ..._data.profile import Profile
from ..._show.explain.results import recorded_page
from ..verb import Result, verb


@verb("autockpt profiles", "autockpt profiles --json")
def profiles() -> Result:
    """List the recorded profiles of real models that come with autockpt.

    Each name can be given wherever a profile file can, as in autockpt solve gpt2-xl --budget 24GiB.
    """
    page = recorded_page({name: Profile.load(name) for name in shipped.names()})
    return Result(page.document, page.text)
