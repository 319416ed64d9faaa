"""README.md names tests that exist, and every test file of this folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = (HERE / "README.md").read_text()
NAMED = re.findall(r"`([a-z_/]+\.py)::(test_\w+)`", TABLE)


def test_the_tests_in_the_table_exist() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in NAMED
        if name not in {node.name for node in ast.parse((HERE.parent / path).read_text()).body if hasattr(node, "name")}
    ]
    assert len(NAMED) > 50
    assert missing == []


def test_every_row_names_a_test_and_every_file_stands_in_the_table() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][2:]
    assert [row for row in rows if "::test_" not in row] == []
    files = {f"hazards/{path.name}" for path in HERE.glob("test_*.py")} - {"hazards/test_table.py"}
    assert files <= {path for path, _ in NAMED}
