"""What the tests of the command share."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Result, Run
from tests.doors import cli_main
from tests.handmade import chain_profile


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in this process; what it does to the module path is undone."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_:
            cli_main([str(argument) for argument in arguments], prog_name="autockpt")
        out, err = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Result(exit_.value.code, out, err)

    return call


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    chain_profile().save(path)
    return path
