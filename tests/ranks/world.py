"""Processes that train together, and a way to have all run a function: a hang fails, and says where each was."""

from __future__ import annotations

import datetime
import faulthandler
import gc
import importlib
import multiprocessing
import traceback
from multiprocessing import connection
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 600
"""After which a work that is not done fails; all of its waits end before, since its process group waits for less."""

GROUP_SECONDS = 240

PRELOADED = ["torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining"]
"""What one process imports, of which all ranks are forks: each of theirs takes three processor seconds."""


class World:
    """Processes, which run one function after the other.

    Args:
        folder: where their process groups find each other, through files.
        ranks: how many there are.
    """

    def __init__(self, folder: Path, ranks: int = 2) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._folder, self._works = folder, 0
        self._asked: list[Any] = [context.Queue() for _ in range(ranks)]
        # No queue: that leaves a thread in each rank, and while there are others nobody looks around in its memory.
        ways = [context.Pipe(duplex=False) for _ in self._asked]
        self._said: list[Any] = [reader for reader, _ in ways]
        self._processes = [
            context.Process(target=_serve, args=(rank, ranks, asked, writer), daemon=True)
            for rank, (asked, (_, writer)) in enumerate(zip(self._asked, ways, strict=True))
        ]
        for process in self._processes:
            process.start()

    def run(self, module: str, name: str, **given: object) -> list[Any]:
        """Have all ranks call a function of a module with the rank, and what is given; return what they return."""
        self._works += 1
        store = f"file://{self._folder}/store{self._works}"
        for asked in self._asked:
            asked.put((self._works, store, module, name, given))
        found: dict[int, Any] = {}
        while len(found) < len(self._asked):
            waiting = [reader for rank, reader in enumerate(self._said) if rank not in found]
            ready: list[Any] = connection.wait(waiting, TIMEOUT_SECONDS)
            try:
                said = [reader.recv() for reader in ready]
            except EOFError:
                said = []
            if not said:
                self.close()
                raise AssertionError(f"{name}: only {sorted(found)} came back: {found}")
            found.update((rank, (error, value)) for work, rank, error, value in said if work == self._works)
        errors = {rank: error for rank, (error, _) in found.items() if error}
        assert not errors, "\n".join(f"rank {rank}: {error}" for rank, error in sorted(errors.items()))
        return [value for _, (_, value) in sorted(found.items())]

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank: int, ranks: int, asked: Any, said: Any) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    faulthandler.enable()
    while True:
        work, store, module, name, given = asked.get()
        gc.freeze()  # recordings and measurements look through all that there is, and the works before have left much
        try:
            distributed.init_process_group(
                "gloo",
                init_method=store,
                rank=rank,
                world_size=ranks,
                timeout=datetime.timedelta(seconds=GROUP_SECONDS),
            )
            try:
                value = getattr(importlib.import_module(module), name)(rank, **given)
            finally:
                distributed.destroy_process_group()
            said.send((work, rank, "", value))
        except BaseException:
            said.send((work, rank, traceback.format_exc(), None))
