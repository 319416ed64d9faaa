"""States of generators, read and set by several threads."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, threading, time
import torch
from tests.doors import set_states, states_of

generators, over, reads = [torch.default_generator], threading.Event(), 300


def lets_others_run(phase, info):
    if threading.current_thread() is threading.main_thread():
        time.sleep(0.001)


def sets():
    while not over.is_set():
        set_states(states_of(generators))
        time.sleep(0)


other = threading.Thread(target=sets, daemon=True)
other.start()
gc.callbacks.append(lets_others_run)
gc.set_threshold(1)
for _ in range(reads):
    states_of(generators)
gc.set_threshold(0)
over.set()
other.join()
print("over")
"""


def test_a_garbage_collection_inside_a_reading_stops_no_thread() -> None:
    """torch holds a generator's lock while a collection may hand the interpreter to a thread that sets its state."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert ran.stdout == "over\n", ran.stderr
