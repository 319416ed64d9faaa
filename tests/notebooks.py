"""Runs the notebooks, each in a process of its own; ``python -m tests.notebooks`` writes down anew what they show."""

from __future__ import annotations

import os
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

__all__ = ["CHECKS", "NOTEBOOKS", "execute", "read"]

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300  # for one cell, on a busy machine
CHECKS = {
    "01_profile": """
        assert autockpt.Profile.load("profile.json") == profile
        assert profile.mode == "measured"
        assert activation_bytes > profile.static.total_bytes  # most of the memory can be recomputed
        assert autockpt.Plan().timeline(profile).peak_bytes > activation_bytes
        assert large.mode == "fake"
        assert autockpt.Plan().timeline(large).peak_bytes > 80 * 10**9
    """,
    "02_choose_a_budget": """
        assert found.batch_size > found.plain_batch_size
        assert found.plan.peak_bytes <= parse_bytes("1GiB")
        assert autockpt.Plan.load("plan.json") == plan
        assert plan.peak_bytes <= budget < 0.5 * frontier.plain_peak_bytes
        assert plan.segments and 0 < plan.recompute_overhead < 0.5
        assert frontier.minimum_bytes > budgets["RTX 4080"]
        cheap = frontier.within(max_overhead=0.05)  # it is not only a budget that can be asked for
        assert cheap.peak_bytes < 0.9 * frontier.plain_peak_bytes
        tenth = frontier.within("30GiB").recompute_overhead
        assert tenth < 0.12 and frontier.plans[-1].recompute_overhead > 0.25
    """,
    "03_apply_and_verify": """
        assert peak <= plan.budget_bytes < plain_peak  # measured, in training
        assert plan.segments and verification.replays > 0  # something ran again
        assert losses == plain_losses and fingerprints == plain_fingerprints
        assert losses[-1] < losses[0]  # it learns
        assert verification.verdict == "exact"
        for each, found_bytes in zip(frontier.plans, measured_bytes, strict=True):
            assert abs(found_bytes / each.peak_bytes - 1) < 0.01
    """,
}
"""What has to hold as a notebook has run: what it says in words at its end, on the names that its cells have bound."""

FREEZE = "import autockpt, gc, matplotlib.pyplot; gc.freeze(); del autockpt, gc, matplotlib"
"""What kernels run first: measuring looks at all that there is, and what libraries bring is most of it."""


def read(path: Path) -> Any:
    """Return the notebook in a file, its cells and what they showed."""
    return nbformat.read(path, as_version=4)


def execute(notebook: Any, folder: Path, checks: str) -> None:
    """Run all cells in a new kernel that works in `folder`, and `checks` after them; what cells show replaces the old.

    Raises:
        CellExecutionError: a cell, or a check, raised.
    """
    notebook.cells.append(nbformat.v4.new_code_cell(textwrap.dedent(checks)))
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
    notebook.cells.pop()
    notebook.metadata["language_info"] = {"name": "python"}  # the kernel adds its version


def main() -> None:
    for path in NOTEBOOKS:
        notebook = read(path)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder), CHECKS[path.stem])
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
