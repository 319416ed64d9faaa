"""Train compiled models by torch's own share of saved bytes, and under our budgets, and eager ones under our plans.

python -m benchmarks.compile.beside                        # all models by aot_eager; --models gpt2 unet for some
python -m benchmarks.compile.beside --backend inductor     # by inductor, which takes a C++ compiler
python -m benchmarks.compile.beside --models               # none: works out the tables from what is stored
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.compile.beside.plot import plot
from benchmarks.compile.beside.report import picture, show
from benchmarks.compile.beside.ways import Row, Ways
from benchmarks.environment import environment, with_steady_allocator, write
from tests.zoo import SHORT

FOLDER = Path(__file__).parent
BACKENDS = ("aot_eager", "inductor")


def run_model(name: str, backend: str, rounds: int) -> None:
    """Run all ways of one model. Each row is stored as soon as it is there."""
    torch.set_num_threads(1)
    file, where = FOLDER / "results.json", environment()

    def stored(rows: list[Row]) -> None:
        raw = load()
        raw.setdefault(backend, {})[name] = {"environment": where, "rows": rows}
        unfinished = file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(raw, indent=1) + "\n")
        unfinished.replace(file)
        print(name, *rows[-1].items(), flush=True)

    Ways(name, backend, stored).run(rounds)


def load() -> dict[str, Any]:
    """Return what is stored: by backend and model, the rows and where they ran."""
    file = FOLDER / "results.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def write_report() -> None:
    """Write the README's part after its marker, and a picture of each model, from what is stored."""
    raw = load()
    for backend in BACKENDS:
        for name, stored in raw.get(backend, {}).items():
            plot(FOLDER / picture(name, backend), f"{name}, {backend}", stored["rows"])
    write(FOLDER, raw, show(raw))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[*SHORT], choices=[*SHORT])
    parser.add_argument("--backend", choices=BACKENDS, default="aot_eager")
    parser.add_argument("--rounds", type=int, default=40, help="how often each way steps for its time")
    asked = parser.parse_args()
    with_steady_allocator()
    torch.set_num_threads(1)  # as in the models' processes, for what the results say of it
    alone = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache:
        # What compiles in this process counts, and what an earlier run compiled would not.
        os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache}
        for name in asked.models:
            with ProcessPoolExecutor(1, mp_context=alone) as pool:
                pool.submit(run_model, name, asked.backend, asked.rounds).result()
            write_report()
    if not asked.models:
        write_report()


if __name__ == "__main__":
    main()
