"""What is written for users runs: the README's blocks and the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import click
import pytest

import autockpt
from autockpt._cli import main

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
MODULES = sorted(module.name for module in pkgutil.walk_packages(autockpt.__path__, "autockpt."))


def test_the_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    blocks = [text for language, text in BLOCKS if language == "python"]
    for text in blocks:
        exec(compile(text, "README.md", "exec"), namespace)
    assert blocks
    assert "Recomputed: " in capsys.readouterr().out


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("autockpt ")])
def test_the_commands_parse(line: str) -> None:
    name, *arguments = shlex.split(line, comments=True)[1:]
    command = main.commands[name]
    options = [
        option for parameter in command.params for option in parameter.opts if isinstance(parameter, click.Option)
    ]
    assert {argument for argument in arguments if argument.startswith("-") and argument != "-"} <= set(options)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("make ")])
def test_the_make_targets_exist(line: str) -> None:
    for target in shlex.split(line, comments=True)[1:]:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    if name.endswith("__main__"):
        pytest.skip("importing it runs the command")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
