"""``autockpt profiles``: the recorded profiles that come with it. Imports no torch."""

from __future__ import annotations

import click

from .common import errors, examples, json_option, print_json
from .screen import show, width


@click.command(
    epilog=examples("autockpt profiles", "autockpt profiles --json"),
)
@json_option
def profiles(as_json: bool) -> None:
    """List the recorded profiles of real models that come with autockpt.

    Each name can be given wherever a profile file can, as in autockpt solve gpt2-xl --budget 24GiB.
    """
    from .._data.shipped import recorded_profiles
    from .._show.explain import RecordedReport, recorded_text

    with errors(as_json=as_json):
        report = RecordedReport(profiles=tuple(recorded_profiles()))
    if as_json:
        print_json(report)
    else:
        show(recorded_text(report, width=width()))
