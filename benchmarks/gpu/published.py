"""Stage 6, last: what others have published, beside what happens here at the same share of the plain peak."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from autockpt import Plan, Profile
from benchmarks.gpu.memory import clean
from benchmarks.gpu.methods import every_layer
from benchmarks.gpu.rows import Figures, Job
from benchmarks.gpu.steps import Setting, Subject, pairs, peak, plan_within, planned, record, seconds_of, subject

__all__ = ["PUBLISHED", "rows"]

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A published figure: a model's plain peak, the lower one, and the overhead at it, on the authors' device.

    Attributes:
        model: the one here that is nearest to theirs.
        share: their lower peak over their plain one.
        overhead: their recompute overhead.
        said: their figures, in words.
    """

    model: str
    share: float
    overhead: float
    said: str


PUBLISHED = {
    "MONeT, ResNet-50": Claim(
        model="resnet-50", share=4.99 / 15.06, overhead=0.12, said="15.06 to 4.99 GB, batch 184, single precision"
    ),
    "OneFlow, BERT-large": Claim(model="bert-large", share=5978 / 9141, overhead=0.33, said="9141 to 5978 MB"),
    "OGC, ResNet-152": Claim(model="resnet-152", share=0.19, overhead=0.37, said="81 % less"),
    "DTR, Transformer": Claim(
        model="encoder", share=4.2 / 9.87, overhead=0.19, said="9.87 to 4.2 GB; torch's own encoder stands in"
    ),
}

BATCHES, THROUGHPUT = 4, 0.886
"""Rockmate on GPT2-large: so many times the batch where the plain one fits, at so much of its throughput."""

MORE_BYTES, FASTER = 3 * GIB, 0.058
"""torchtitan #4636: with 0.3 to 3 GiB more than where all is recomputed, 5.2 to 5.8 % more tokens a second."""


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return a row for each claim, in a process of its own."""
    runs = {name: partial(_claim, claim, setting) for name, claim in PUBLISHED.items()}
    runs["Rockmate, GPT2-large"] = partial(_batches, setting)
    runs["torchtitan #4636, Llama"] = partial(_over_full, setting)
    if setting.size == "tiny":  # the smallest of two kinds
        runs = dict(list(runs.items())[len(PUBLISHED) - 1 : len(PUBLISHED) + 1])
    return [Job(name=f"published: {name}", run=run, process=name) for name, run in runs.items()]


def _predicted(plan: Plan, reached: bool) -> dict[str, float | int | bool]:
    return {"peak_bytes": plan.peak_bytes, "overhead": plan.recompute_overhead, "reaches their share": reached}


def _claim(claim: Claim, setting: Setting) -> Iterator[Figures]:
    of = subject(claim.model, setting)
    profile, plain, _ = record(of)
    plan, reached = plan_within(profile, int(claim.share * plain.peak_bytes), setting)
    yield "predicted", {"published": asdict(claim), "plain_peak_bytes": plain.peak_bytes, **_predicted(plan, reached)}
    before = peak(of, profile)["peak_bytes"]
    after = _peak_under(plan, of, profile)
    yield "measured", {"plain_peak_bytes": before, "peak_bytes": after, "share": after / before}
    yield "measured", dict(pairs(of, partial(planned, of, plan), setting.pairs))


def _peak_under(plan: Plan, of: Subject, profile: Profile) -> int:
    with planned(of, plan) as step:
        step()
        return peak(of, profile)["peak_bytes"]


def _batches(setting: Setting) -> Iterator[Figures]:
    """A batch four times as large in the plain peak of one: throughput over that of the plain step."""
    one = subject("gpt2-large", setting)
    profile, plain, _ = record(one)
    del one
    many = subject("gpt2-large", setting, times=BATCHES)
    larger, _, _ = record(many)
    plan, reached = plan_within(larger, plain.peak_bytes, setting)
    said = {"published": {"said": f"{BATCHES} times the batch", "throughput": THROUGHPUT}}
    yield "predicted", {**said, "plain_peak_bytes": plain.peak_bytes, **_predicted(plan, reached)}
    yield "measured", {"peak_bytes": _peak_under(plan, many, larger)}
    with planned(many, plan) as step:
        seconds = statistics.median(seconds_of(step, many.device) for _ in range(setting.pairs))
    del many, step
    clean(setting.device)
    one = subject("gpt2-large", setting)
    once = statistics.median(seconds_of(one.step, one.device) for _ in range(setting.pairs))
    yield "measured", {"plain_peak_bytes": peak(one, profile)["peak_bytes"]}
    yield "measured", {"plain_seconds": once, "step_seconds": seconds, "throughput": BATCHES * once / seconds}


def _over_full(setting: Setting) -> Iterator[Figures]:
    """Ours with a little more memory than where every layer is recomputed: how much faster."""
    of = subject("llama-1b", setting)
    profile, plain, _ = record(of)
    with every_layer(of) as step:
        step()
        full_bytes = peak(of, profile)["peak_bytes"]
    more_bytes = MORE_BYTES if setting.size == "full" else (plain.peak_bytes - full_bytes) // 8
    plan, reached = plan_within(profile, full_bytes + more_bytes, setting)
    said = {"published": {"said": "0.3 to 3 GiB more than full recompute", "faster": FASTER}}
    yield "predicted", {**said, **_predicted(plan, reached)}
    yield "measured", {"full_peak_bytes": full_bytes, "peak_bytes": _peak_under(plan, of, profile)}
    ours = pairs(of, partial(planned, of, plan), setting.pairs)
    full = pairs(of, partial(every_layer, of), setting.pairs)
    faster = (1 + full["overhead"]) / (1 + ours["overhead"]) - 1
    yield "measured", {**ours, "full_overhead": full["overhead"], "faster": faster}
