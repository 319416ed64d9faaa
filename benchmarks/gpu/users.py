"""Stage 2, what users ask: does it stay under a cap, is it faster at the same peak, and how large may a batch be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch

import autockpt
from autockpt import Infeasible, Plan
from benchmarks.gpu.busy import every_block
from benchmarks.gpu.caps import of_model
from benchmarks.gpu.clocks import on_two_clocks, their_overhead
from benchmarks.gpu.memory import clean, synchronize
from benchmarks.gpu.methods import METHODS, TORCH, TRANSFORMERS, Way
from benchmarks.gpu.models import tokens_of
from benchmarks.gpu.road import drive
from benchmarks.gpu.rows import Figures, Job, NotHere, out_of_memory
from benchmarks.gpu.steps import Setting, Step, Subject, loss_of, plan_within, planned, record, subject

__all__ = ["at_equal_peak", "largest", "rows"]

CAPPED, PERCENT = "gpt2-large", 60
DRIVEN = "llama-1b"
EQUAL = ("llama-1b", "gpt2-large")
BATCH = "llama-1b"
OURS = "autockpt"

STEPS = {"full": 20, "tiny": 4}
"""With optimizer, of each: the half of them by turns."""

TRIES = 4
"""Plans that are made for another method's peak, each for what the one before has shown."""

CLOSE = 0.01
"""Equal peaks: ours not above theirs, and by no more than this below, as far as tries reach that; the ratio is said."""

FINE = {"full": 32, "tiny": 1}
"""One part in so many: how fine the largest batch is found."""

MARGIN = 1.03
"""Of the card over the budget: what the documentation says that CUDA's allocator takes."""

CARD_BYTES = 24 * 2**30
"""The largest batch is that of a card of this size, whatever the device has."""


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the rows of stage 2, in the order in which they are wanted."""
    full = setting.size == "full"
    capped = list(of_model(CAPPED, (PERCENT,), setting, folder))
    loop = Job(name=f"{DRIVEN}: governed loop", run=partial(drive, DRIVEN, setting, share=0.6), process="loop")
    others = (TORCH, TRANSFORMERS) if full else (TORCH,)
    equal = [
        Job(
            name=f"{each} at the peak of {other}",
            run=partial(at_equal_peak, each, other, setting),
            process=f"equal {each}",
        )
        for each in (EQUAL if full else EQUAL[:1])
        for other in others
    ]
    batches = [
        Job(name=f"largest batch of {BATCH}: {way}", run=partial(_batch, way, setting), process=f"batch {way}")
        for way in (("plain", *others, OURS) if full else (*others, OURS))
    ]
    # The larger model's come last: they take as long as all others together.
    return [*capped, loop, *equal[: len(others)], *batches, *equal[len(others) :]]


def at_equal_peak(name: str, other: str, setting: Setting, *, fused: bool = False) -> Iterator[Figures]:
    """Train another's way, and ours at the peak that theirs was measured to have.

    Args:
        name: of the model.
        other: the other's name.
        setting: how the stage runs.
        fused: whether AdamW is fused, and makes no copy of the parameters in its step.
    """
    of = subject(name, setting, fused=fused)
    theirs = METHODS[other]()
    their_peak_bytes = _peak_bytes(of, theirs)
    profile, _, _ = record(of)
    other_bytes = autockpt.measure(of.step, device=of.device).start_bytes - profile.static.total_bytes
    plan, reached = plan_within(profile, their_peak_bytes - other_bytes, setting)
    yield "predicted", {"their_peak_bytes": their_peak_bytes, "peak_bytes": plan.peak_bytes + other_bytes}
    yield "predicted", {"overhead": plan.recompute_overhead, "reaches their peak": reached, "peak ratio": 1.0}
    yield (
        "predicted",
        {"optimizer_step_bytes": profile.optimizer_step_bytes, **their_overhead(profile, every_block(of))},
    )
    yield "predicted", on_two_clocks(profile, {"ours": plan})
    asked_bytes, tried = their_peak_bytes - other_bytes, dict[int, Plan]()
    for _ in range(TRIES):
        found = _peak_bytes(of, partial(planned, plan=plan))
        tried[found] = plan
        if 0 <= their_peak_bytes - found <= CLOSE * their_peak_bytes:
            break
        asked_bytes += their_peak_bytes - found
        plan, _ = plan_within(profile, asked_bytes, setting)
    peak_bytes = max((each for each in tried if each <= their_peak_bytes), default=min(tried))
    plan = tried[peak_bytes]
    yield "measured", {"their_peak_bytes": their_peak_bytes, "peak_bytes": peak_bytes, "tried": sorted(tried)}
    yield (
        "measured",
        {"peak ratio": peak_bytes / their_peak_bytes, "reaches their peak": min(tried) <= their_peak_bytes},
    )
    yield "measured", _by_turns(of, theirs, partial(planned, plan=plan), setting)


def _by_turns(of: Subject, theirs: Way, ours: Way, setting: Setting) -> dict[str, float]:
    """Time whole steps, optimizer included: plain ones, theirs, ours, and each again."""
    ways: dict[str, Way] = {"plain": lambda of: nullcontext(of.step), "their": theirs, "ours": ours}
    each, seconds = STEPS[setting.size] // 2, dict.fromkeys(ways, 0.0)
    for _ in range(2):
        for name, way in ways.items():
            with way(of) as step:
                step()
                seconds[name] += _seconds(step, each, of.device)
    many = 2 * each * tokens_of(of.batch)
    return {
        "tokens_per_second": many / seconds["ours"],
        "their_tokens_per_second": many / seconds["their"],
        "plain_tokens_per_second": many / seconds["plain"],
        "faster": seconds["their"] / seconds["ours"] - 1,
        "overhead": seconds["ours"] / seconds["plain"] - 1,
        "their overhead": seconds["their"] / seconds["plain"] - 1,
        "steps": 2 * each,
    }


def _seconds(step: Step, count: int, device: torch.device) -> float:
    """Return the seconds of so many steps, from an idle device to an idle device."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(count):
        step()
    synchronize(device)
    return time.perf_counter() - began


def _peak_bytes(of: Subject, way: Callable[[Subject], AbstractContextManager[Step]]) -> int:
    """Return the measured peak of a whole step, all that is alive counted, after one that sets up what stays."""
    with way(of) as step:
        step()
        return autockpt.measure(step, device=of.device).peak_bytes


def _batch(way: str, setting: Setting) -> Iterator[Figures]:
    """Find the largest batch that trains one way on a card of a size, by training."""
    if setting.device.type != "cuda":
        raise NotHere("nothing caps what a CPU's allocator hands out")
    one = subject(BATCH, setting)
    cap_bytes = CARD_BYTES if setting.size == "full" else torch.cuda.max_memory_reserved(setting.device) * 5 // 4
    idle_bytes = torch.cuda.memory_allocated(setting.device)
    samples = len(next(iter(one.batch.values())))
    first, plans = samples, dict[int, Plan]()
    if way == OURS and setting.size == "full":  # some ten recordings
        budget_bytes = int(cap_bytes / MARGIN)
        made = autockpt.max_batch(
            one.model,
            partial(_of_size, one.batch),
            budget_bytes,
            loss=loss_of,
            optimizer=one.optimizer,
            mode="fake",
            seconds=setting.search_seconds,
        )
        first, plans[made.batch_size] = made.batch_size, made.plan
        yield "predicted", {"batch_size": made.batch_size, "plain batch": made.plain_batch_size}
    yield "measured", {"cap_bytes": cap_bytes, "idle_bytes": idle_bytes}
    total_bytes = torch.cuda.get_device_properties(setting.device).total_memory
    seconds: dict[int, float] = {}

    def fits(size: int) -> bool:
        clean(setting.device)
        torch.cuda.set_per_process_memory_fraction(cap_bytes / total_bytes, setting.device)
        of = Subject(model=one.model, batch=_of_size(one.batch, size), optimizer=one.optimizer, device=one.device)
        try:
            using = _way(way, of, plans.get(size), cap_bytes, setting)
            with using as step:
                step()
                seconds[size] = _seconds(step, 2, of.device) / 2
        except (Infeasible, RuntimeError) as error:
            if not isinstance(error, Infeasible) and not out_of_memory(error):
                raise
            of.optimizer.zero_grad()
            return False
        return True

    size = largest(fits, first, FINE[setting.size])
    clean(setting.device)
    tokens = tokens_of(one.batch) // samples
    yield "measured", {"batch_size": size, "tried": sorted(seconds)}
    yield "measured", {"tokens_per_second": size * tokens / seconds[size] if size else 0.0}


def _way(way: str, of: Subject, plan: Plan | None, cap_bytes: int, setting: Setting) -> AbstractContextManager[Step]:
    """Return the step of a way to train, ours with the plan of this very size."""
    if way != OURS:
        return METHODS[way]()(of)
    if plan is None:
        profile = autockpt.profile(of.model, of.batch, loss=loss_of, optimizer=of.optimizer, mode="fake")
        plan = autockpt.solve(profile, int(cap_bytes / MARGIN), seconds=setting.search_seconds)
    return planned(of, plan)


def _of_size(batch: dict[str, torch.Tensor], size: int) -> dict[str, torch.Tensor]:
    """Return a batch of so many samples, by repeating those that are there."""
    return {key: value[torch.arange(size, device=value.device) % len(value)] for key, value in batch.items()}


def largest(fits: Callable[[int], bool], first: int, fine: int) -> int:
    """Return the largest number that fits, to one part in so many, 0 where none does.

    Args:
        fits: tries a number; where one does not fit, no larger one does.
        first: where to begin.
        fine: how many parts.
    """
    low, high, size, more = 0, 0, first, max(1, 2 * first // fine)
    while not high or high - low > max(1, low // fine):
        if fits(size):
            low = size
        else:
            high = size
        size, more = (low + more, 2 * more) if not high else ((low + high) // 2, more)
    return low
