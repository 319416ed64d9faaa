"""Training loops as users write them, for a run that is plain first and then within a budget."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import autockpt
from tests.device.optimizers import EightBit
from tests.device.twin import Loop, Optimizers, Run, adamw, loss_of, plainly
from tests.fake_cuda.device import TOTAL_BYTES

__all__ = ["SITUATIONS", "Situation"]

STEPS = 7


def seven_steps(run: Run) -> None:
    plainly(run, STEPS)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """How a model is trained.

    Args:
        loop: trains it.
        share: of the bytes between what stands and the plain peak, that the budget has.
        optimizer: makes what trains it.
        apply: puts the budget on.
        options: of the device, beside the workspaces.
    """

    loop: Loop = seven_steps
    share: float = 0.6
    optimizer: Optimizers = adamw
    apply: Callable[[Run, int], object] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def train(run: Run, batch: Mapping[str, Any] | None = None, around: AbstractContextManager[Any] | None = None) -> None:
    """Forward, loss, backward and a step of the optimizer, with the forward in a context."""
    with around or contextlib.nullcontext():
        outputs = run.model(**(run.batch if batch is None else batch))
        loss = loss_of(outputs)
    loss.backward()
    if run.optimizer is not None:
        run.optimizer.step()
    del outputs


def with_inputs(run: Run, budget_bytes: int) -> None:
    autockpt.apply(run.model, budget=budget_bytes, inputs=run.batch, loss=loss_of, optimizer=run.optimizer)


def around_forward(make: Callable[[], AbstractContextManager[Any]], run: Run) -> None:
    for _ in range(STEPS):
        with run.step():
            train(run, around=make())


def half_precision(run: Run) -> None:
    """fp16 with a scaler, the first of whose scales may be too large."""
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(STEPS + 1):
        with run.step():
            with torch.autocast("cuda", dtype=torch.float16):
                outputs = run.model(**run.batch)
                loss = loss_of(outputs)
            scaler.scale(loss).backward()
            if run.optimizer is not None:
                scaler.step(run.optimizer)
                scaler.update()
            del outputs


def accumulating(run: Run) -> None:
    for _ in range(STEPS):
        with run.step():
            for _ in range(3):
                outputs = run.model(**run.batch)
                (loss_of(outputs) / 3).backward()
                del outputs
            if run.optimizer is not None:
                run.optimizer.step()


def zeros_kept(run: Run) -> None:
    """Gradients are set to zero and stay, after the step as the loop ends it."""
    for _ in range(STEPS):
        with run.step():
            train(run)
        for each in run.model.parameters():
            each.grad = torch.zeros_like(each)


def validating(run: Run) -> None:
    """A pass over 16 times the batch after every second step."""
    for step in range(STEPS + 1):
        with run.step():
            train(run)
        if step % 2:
            run.model.eval()
            with torch.no_grad():
                run.model(**{key: torch.cat([value] * 16) for key, value in run.batch.items()})
            run.model.train()


def ragged(run: Run) -> None:
    for length in (48, 32, 48, 64, 40, 50, 64, 56, 64, 33):
        with run.step():
            train(run, {key: value[:, :length].contiguous() for key, value in run.batch.items()})


def fed_by_a_thread(run: Run) -> None:
    """A thread pins batches and brings them to the device, three ahead."""
    host = [{key: value.cpu().roll(step, 0) for key, value in run.batch.items()} for step in range(STEPS)]
    ready: queue.Queue[dict[str, Tensor]] = queue.Queue(maxsize=2)

    def feed() -> None:
        for batch in host:
            ready.put({key: value.pin_memory().to("cuda", non_blocking=True) for key, value in batch.items()})

    thread = threading.Thread(target=feed)
    thread.start()
    for _ in range(STEPS):
        with run.step():
            train(run, ready.get())
    thread.join()


def beside_a_thread(run: Run) -> None:
    """A thread computes on the device for itself, all the time: 16 KiB at most."""
    ends = threading.Event()

    def work() -> None:
        while not ends.wait(0.001):
            torch.ones(1024, device="cuda").mul_(2).sum().item()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        plainly(run, STEPS)
    finally:
        ends.set()
        thread.join()


def profiled(first: int, last: int, run: Run) -> None:
    """A profiler of the user's runs in steps `first` to `last`, counted from 1."""
    found = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    for step in range(1, STEPS + 3):
        if step == first:
            found.start()
        with run.step():
            train(run)
        if step == last:
            found.stop()


def failing(run: Run) -> None:
    """In step 2, 5 and 6 the device has no memory for something in the middle of forward; the loop goes on."""
    for step in range(1, STEPS + 3):
        around = _too_much(run.model) if step in (2, 5, 6) else contextlib.nullcontext()
        with contextlib.suppress(torch.OutOfMemoryError), run.step(), around:
            train(run)


@contextlib.contextmanager
def _too_much(model: nn.Module) -> Iterator[None]:
    inner = [each for each in model.modules() if not list(each.children())]
    hook = inner[len(inner) // 2].register_forward_pre_hook(
        lambda *_: torch.empty(2 * TOTAL_BYTES, device="cuda", dtype=torch.uint8)
    )
    try:
        yield
    finally:
        hook.remove()


def in_turn(run: Run) -> None:
    """Two models, each in a step of its own, one optimizer for both."""
    for _ in range(STEPS):
        with run.step():
            for name, model in run.model.named_children():
                outputs = model(**run.batch[name])
                loss_of(outputs).backward()
                del outputs
            if run.optimizer is not None:
                run.optimizer.step()


def together(run: Run) -> None:
    """Two models under one loss."""
    for _ in range(STEPS):
        with run.step():
            outputs = {name: model(**run.batch[name]) for name, model in run.model.named_children()}
            torch.stack([loss_of(each) for each in outputs.values()]).sum().backward()
            if run.optimizer is not None:
                run.optimizer.step()
            del outputs


def under_a_cap(run: Run, budget_bytes: int) -> None:
    """No more than two fifths above the budget can be reserved, which is less than the plain step's peak.

    So much, since blocks of a toy fill its segments badly: how badly depends on which of several plans of the same
    peak was made, by seconds that were measured. With a quarter some of them did not fit.
    """
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((run.base_bytes + 1.4 * (budget_bytes - run.base_bytes)) / TOTAL_BYTES)
    autockpt.apply(run.model, budget=budget_bytes)


BF16 = partial(torch.autocast, "cuda", dtype=torch.bfloat16)

SITUATIONS: dict[str, Situation] = {
    "the loop": Situation(),
    "inputs=": Situation(apply=with_inputs),
    "bf16": Situation(loop=partial(around_forward, BF16)),
    "fp16, scaler": Situation(loop=half_precision),
    "foreach": Situation(optimizer=lambda model: torch.optim.AdamW(model.parameters(), foreach=True)),
    "fused": Situation(optimizer=lambda model: torch.optim.AdamW(model.parameters(), fused=True)),
    "8-bit states": Situation(optimizer=lambda model: EightBit(model.parameters())),
    "accumulation": Situation(loop=accumulating, share=0.7),
    "gradients stay": Situation(loop=zeros_kept, share=0.7),
    "validation": Situation(loop=validating),
    "ragged": Situation(loop=ragged),
    "loader thread": Situation(loop=fed_by_a_thread),
    "thread beside": Situation(loop=beside_a_thread),
    "save_on_cpu": Situation(loop=partial(around_forward, partial(torch.autograd.graph.save_on_cpu, pin_memory=True))),
    "profiler, steps 1-2": Situation(loop=partial(profiled, 1, 2)),
    "profiler, steps 5-6": Situation(loop=partial(profiled, 5, 6)),
    "OOM in steps 2, 5, 6": Situation(loop=failing),
    "two models in turn": Situation(loop=in_turn),
    "two models, one loss": Situation(loop=together),
    "cap": Situation(apply=under_a_cap, options={"mib_bytes": 1 << 14}),
    "conv scratch": Situation(share=0.8, options={"scratch_bytes": 200_000}),
}
