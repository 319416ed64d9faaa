"""How the documentation is built: `make docs`."""

from __future__ import annotations

from typing import ClassVar

import click
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

import autockpt
from autockpt._cli import main

project = "autockpt"
author = "The autockpt authors"
copyright = "The autockpt authors"
version = release = autockpt.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
exclude_patterns: list[str] = []
html_theme = "furo"
html_title = f"autockpt {release}"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["lightning"]  # its callback is documented, and nothing else here needs it
autodoc_typehints = "signature"
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = True
python_maximum_signature_line_length = 90

# What is ours has to be found; `model` in a docstring is an argument, and torch's names live elsewhere.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!autockpt\.).*"),
    (r"py:.*", r"autockpt\.(_train\.apply\.M|_run\.patch\.recompute\.R|_data\.files\.S|solvers\.deadline\.T)"),
    (
        r"py:.*",
        r"autockpt\._(choose\..*\.TwoClocks|data\.step\.host_seconds\.HostSeconds|data\.hardware\.devices\.Gpu)",
    ),
]


class HelpText(Directive):
    """The help text of a command, as the command prints it: `help` alone, or `help solve`."""

    optional_arguments = 1
    option_spec: ClassVar[dict[str, object]] = {}

    def run(self) -> list[nodes.Node]:
        """Return one literal block."""
        name = self.arguments[0] if self.arguments else ""
        settings = {**main.context_settings, "terminal_width": 80}
        root = click.Context(main, info_name="autockpt", **settings)
        command = main.get_command(root, name) if name else main
        assert command is not None, name
        context = click.Context(command, info_name=name, parent=root, terminal_width=80) if name else root
        text = command.get_help(context)
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> None:
    """Add what this documentation needs."""
    app.add_directive("help", HelpText)
