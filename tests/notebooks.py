"""Runs the notebooks, each in a process of its own; ``python -m tests.notebooks`` writes down anew what they show."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

__all__ = ["NOTEBOOKS", "execute", "read"]

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300  # for one cell, on a busy machine
FREEZE = "import autockpt, gc, matplotlib.pyplot; gc.freeze(); del autockpt, gc, matplotlib"
"""What kernels run first: measuring looks at all that there is, and what libraries bring is most of it."""


def read(path: Path) -> Any:
    """Return the notebook in a file, its cells and what they showed."""
    return nbformat.read(path, as_version=4)


def execute(notebook: Any, folder: Path) -> None:
    """Run all cells in a new kernel that works in `folder`; what they show replaces what they showed.

    Raises:
        CellExecutionError: a cell raised.
    """
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        extra_arguments=[f"--IPKernelApp.exec_lines={FREEZE}"],
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,  # when each cell ran is nobody's business
    )
    # One thread: two that wait for one another on a busy machine make every step several times slower.
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    notebook.metadata["language_info"] = {"name": "python"}  # the kernel adds its version


def main() -> None:
    for path in NOTEBOOKS:
        notebook = read(path)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder))
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
