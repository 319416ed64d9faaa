"""The page of `fit`: the fastest way on each device, and what other libraries' checkpointing switches would do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ..._choose.predict.peak_breakdown import advise
from ..._data.hardware.devices import CONTEXT_BYTES, MARGIN, Gpu
from ..._data.hardware.paces import host_mode, paces_of
from ..._data.profile import Profile
from ..._fit.fit import MOST_SAMPLES, FitRow, Fits
from ..._fit.held import held_by
from ..._fit.switches import FELL
from ...solvers.units import format_bytes, format_seconds
from ..page import Page, PageTable, counted
from .common import first_within, paced, shared_by, whose_host
from .names import place
from .ways import CHANGES, PAIRS, answer, lowest_bytes, rate, slower_than_plain, way_document, ways_table

MEANT = {
    "every block": "activation_checkpointing_enable() of transformers, before 5.23 gradient_checkpointing_enable(), or "
    "Megatron's full recompute; blocks are the members of a list",
    "every 2nd block": 'torchtitan\'s selective_ac_option "2"',
    "attention core": "Megatron's selective recompute",
}
"""What each switch is called in the libraries that have it."""

HOST_BOUND = "host-bound"

NOT_RECOMMENDED = f"Not recommended: {CHANGES}"
NOT_LOOKED_AT = "Microbatches are not looked at on several ranks: each gathers again, for seconds not counted here"


MOST_LINES, MOST_ROWS, LEAST_ROWS = 20, 8, 3
"""Of the short page, and of its table."""


def fit_page(found: Fits, source: str = "") -> Page:
    """Lay out how a step is taken on each device, the fastest way first; `source` is the word that names it."""
    profile, several = found.profile, _several(found)
    return Page(
        title=_title(found, source),
        blocks=[
            _table(found, several) if len(found.rows) > 1 else ways_table(found.rows[0]),
            *_rank(profile),
            *_why_not(found),
            *_switches(found),
            *_notes(found),
            *_next(found, source),
        ],
        document=_document(found),
    )


def brief_fit(found: Fits, source: str = "", *, by: str = "-v") -> Page:
    """Lay out the answer, the ways or the devices, why a step does not fit, and what to do next, in twenty lines.

    Args:
        found: what was found.
        source: the word that names the step.
        by: what shows the whole page.
    """
    rows, title = found.rows, _title(found, source)
    mixed = [NOT_RECOMMENDED] if found.mixes else []
    mixed += [NOT_LOOKED_AT] if found.profile.is_shared else []
    more = f"{by} shows the switches of other libraries, and notes"
    last = "\n".join([*_next(found, source, _shown(found, MOST_ROWS)), *_host_bound(found), *mixed, more])
    why = [] if len(rows) > 1 and any(row.best for row in rows) else [*_why_not(found)]

    def page(most: int) -> Page:
        table = _table(found, _several(found), most) if len(rows) > 1 else ways_table(rows[0], most)
        return Page(title=title, blocks=[table, *why, *_rank(found.profile), last], document=_document(found))

    return first_within(map(page, range(MOST_ROWS, LEAST_ROWS - 1, -1)), MOST_LINES)


def _several(found: Fits) -> bool:
    """Whether rows are of several numbers of samples."""
    return len({row.samples for row in found.rows}) > 1


def _title(found: Fits, source: str) -> str:
    """Say the answer, of which step it is, and where its figures come from."""
    profile, recipe = found.profile, found.profile.recipe
    words = [recipe.batch, recipe.precision, recipe.optimizer] if recipe is not None else []
    several, first = _several(found), found.rows[0].samples
    if recipe is None or several or first != found.samples:
        words[:1] = [counted(first, "sample")] if first else []
    words += [shared_by(profile.world)] if profile.world is not None else []
    step = ", ".join([profile.model, *words])
    ran = "Nothing ran" if profile.mode == "fake" else f"Recorded on {profile.device}; nothing ran for this"
    by = "seconds by rooflines" if found.by_roofline else f"seconds as on {profile.device}"
    if not profile.plain_seconds:
        by = "and seconds are not known"
    peak = f"{format_bytes(profile.plain_peak_bytes)} plain"
    counts = "" if profile.optimizer else f"; no optimizer is counted{_name_one(source)}"
    return f"{answer(found, several)}\n{step}: {peak}{counts}\n{ran}: all figures are predicted, {by}."


def _name_one(source: str) -> str:
    return " (--optimizer adamw)" if source and ":" in source else ""


def _shown(found: Fits, most: int) -> list[FitRow]:
    """Return the rows that a table shows: all of them, or of more devices the smallest that hold the step first."""
    rows = list(found.rows)
    if len(rows) <= most:
        return rows
    return sorted(rows, key=lambda row: (row.best is None, row.device.usable_bytes))[:most]


def _table(found: Fits, several: bool, most: int | None = None) -> PageTable:
    """Lay out a row for each device; at most so many."""
    found_rows = _shown(found, most or len(found.rows))
    columns: dict[str, list[str]] = {
        "device": [row.gpu for row in found_rows],
        "usable": [format_bytes(row.device.usable_bytes) for row in found_rows],
        "fits": [_verdict(row) for row in found_rows],
        "slower": [_slower(row) for row in found_rows],
        "peak": [format_bytes(lowest_bytes(row) if row.best is None else row.best.peak_bytes) for row in found_rows],
    }
    if several:
        columns = {"device": columns.pop("device"), "samples": [str(row.samples) for row in found_rows], **columns}
    if found.samples:
        columns["samples/s"] = [rate(row, row.best) for row in found_rows]
        columns["at once"] = [_samples(row.largest) for row in found_rows]
        columns["plain"] = [_samples(row.largest_plain) for row in found_rows]
    below = _legend(found, found_rows) if most is None else _brief_legend(found, found_rows)
    rows = list(zip(*columns.values(), strict=True))
    return PageTable(header=list(columns), rows=rows, below=below, least_told=("peak", "usable"))


def _legend(found: Fits, rows: Sequence[FitRow]) -> str:
    """Say what the columns of the table are."""
    below = "fits: the fastest way; slower: than the plain step; peak: where nothing fits, the lowest of all ways"
    if found.samples:
        below += "\nat once: about how many samples fit without microbatches, with a plan; plain: without one"
    if any(row.best is not None and row.best.microbatches > 1 for row in rows):
        below += f"\n2 × 4: two microbatches of 4 samples, and one step of the optimizer. {PAIRS}"
    return below


def _brief_legend(found: Fits, rows: Sequence[FitRow]) -> str:
    """Say in three lines what the columns are, and how many rows are left out."""
    left_out = len(found.rows) - len(rows)
    below = f"and {counted(left_out, 'more row')}; the smallest that hold the step come first\n" if left_out else ""
    split = any(row.best is not None and row.best.microbatches > 1 for row in rows)
    below += f"fits: the fastest way{', as 2 × 4 in two microbatches of 4' if split else ''}"
    return f"{below}; at once: samples that fit with a plan" if found.samples else below


def _rank(profile: Profile) -> Iterator[PageTable]:
    """Say what each rank holds, where there are several."""
    world = profile.world
    if world is None:
        return
    held = held_by(profile, world)
    parts = {
        "parameters": held.parameter_bytes,
        "gradients": held.gradient_bytes,
        "optimizer": held.optimizer_bytes,
        "buckets": held.bucket_bytes,
        "whole weights, at most": held.gathered_bytes,
        "whole gradients, at most": held.reduced_bytes,
        "activations and all else, at most": held.other_bytes,
    }
    rows = [[name, format_bytes(size)] for name, size in parts.items() if size]
    below = {
        "fsdp2": "whole weights: gathered, and what brings them; whole gradients: until reduced, and what they go in",
        "dtensor": "parameters: parts of the layers that ranks share, and all others whole",
        "ddp": "Each rank holds the whole model. buckets: of DistributedDataParallel",
        "whole": "Each rank holds the whole model: build shards nothing. --shard fsdp2 shards its blocks and its root; "
        f"DistributedDataParallel adds {format_bytes(held.gradient_bytes)} of buckets",
    }
    yield PageTable(title="What each rank holds", header=["part", "bytes"], rows=rows, below=below[world.way])


def _verdict(row: FitRow) -> str:
    way = row.best
    if way is None:
        return "changed" if row.ways[0].fits else "no"
    if way.microbatches > 1:
        return f"{way.microbatches} × {way.samples}{'' if way.plan is None else ', planned'}"
    return "yes" if way.plan is None else "with a plan"


def _slower(row: FitRow) -> str:
    way = row.best
    if way is None or (way.plan is None and way.microbatches == 1) or not row.timed:
        return "-"
    if row.host_bound and way.plan is not None:
        return HOST_BOUND
    return f"{slower_than_plain(row, way):.1%}"


def _samples(number: int | None) -> str:
    if number and number >= MOST_SAMPLES:
        return f"{MOST_SAMPLES}+"
    return "-" if not number else str(number)


def _why_not(found: Fits) -> Iterator[str]:
    """Say why no plan fits the step into some devices, and what would help on the largest of them."""
    parts = found.lowest
    if parts is None:
        return
    without = [row for row in found.rows if row.best is None and row.samples == found.rows[0].samples]
    if not without:
        return
    largest = max(without, key=lambda row: row.device.usable_bytes)
    names = ", ".join(row.gpu for row in without)
    lowest = f"the lowest peak at once, {format_bytes(parts.peak_bytes)}, stands at the {place(parts.step)}: {parts}"
    where = f"On {largest.gpu}: " if len(without) > 1 else ""
    helps = [f"  {where}{line}" for line in advise(parts, largest.device.usable_bytes)[1:2]]
    yield "\n".join([f"Not on {names}: {lowest}", *helps])


def _switches(found: Fits) -> Iterator[PageTable]:
    """Yield the table of other libraries' switches, if there is one.

    Where the host sets the pace, overheads would say nothing. Nor would ours beside a switch that frees nothing.
    """
    if not found.switches:
        return
    plain = found.profile.plain_peak_bytes
    rows, meant = [], []
    for each in found.switches:
        fell = each.switch.peak_bytes < (1 - FELL) * plain
        slower = "-" if found.host_bound else f"{each.overhead:.1%}"
        ours = "-" if each.ours is None or not fell or found.host_bound else f"{each.ours:.1%}"
        rows.append([each.switch.name, format_bytes(each.switch.peak_bytes), slower, ours])
        meant.append(
            f"  {each.switch.name}: {MEANT[each.switch.name]}{'' if fell else '. Here the peak does not fall'}"
        )
    timed = f", with the seconds of {found.timed_for}" if found.by_roofline else ""
    yield PageTable(
        title=f"What switches would do, as plans on the same step{timed}",
        header=["switch", "peak", "slower", "autockpt at that peak"],
        rows=rows,
        below="\n".join(meant),
    )


def _host_bound(found: Fits) -> Iterator[str]:
    """Say for which devices overheads mean nothing, because the host takes longer than the kernels."""
    rows = {row.gpu: row for row in found.rows if row.host_bound and row.timed}
    told = [gpu for gpu, row in rows.items() if row.best is not None and row.best.plan is not None]
    told += [found.timed_for] if found.host_bound and found.switches and found.timed_for in rows else []
    if told:
        row = rows[told[0]]
        kernels, host = format_seconds(row.plain_seconds), format_seconds(float(f"{row.host_seconds:.1g}"))
        yield (
            f"{', '.join(dict.fromkeys(told))}: {HOST_BOUND}. The kernels of a step take {kernels} on {told[0]}, and "
            f"its host about {host} to launch them. How much slower a plan is depends on the host then; such steps "
            "took up to four times as long on an H100. A larger batch changes that"
        )


def _host(found: Fits) -> Iterator[str]:
    """Say who sets the pace, and where the host's seconds come from."""
    yield from _host_bound(found)
    for row in found.rows:
        at_once = row.best is not None and row.best.plan is not None and row.best.microbatches == 1
        if row.clocks is not None and row.timed and at_once and not row.host_bound:
            said = paced(row.clocks.host_pace_seconds, row.clocks.step_seconds)
            whose = whose_host(host_mode(found.profile) is not None, found.profile)
            yield f"{row.gpu}: {said} with its plan; {whose}"
            return
    if not any(row.best is not None and row.best.microbatches > 1 for row in found.rows):
        return
    if paces_of(found.profile) is None:
        yield (
            "Microbatches are taken to need their share of the recorded seconds, and what adding gradients takes. "
            "Small ones take more: halves of three small transformers took 5 to 8 % more on a CPU"
        )
        return
    whose = whose_host(host_mode(found.profile) is not None, found.profile)
    yield f"Microbatches are timed with what the host takes to launch them; {whose}"


def _notes(found: Fits) -> Iterator[str]:
    precision = found.profile.recipe.precision if found.profile.recipe is not None else ""
    lines = [
        *_host(found),
        f"usable: what torch sees of the memory, less {CONTEXT_BYTES // 2**20} MiB for the CUDA context and "
        f"{MARGIN:.0%} for the allocator; rates are those of data sheets, which --json names",
    ]
    slow = list(dict.fromkeys(row.gpu for row in found.rows if not row.device.bfloat16))
    if slow and "bf16" in precision:
        lines.append(f"{', '.join(slow)}: no bf16 in hardware; the overhead is that of float16")
    if found.profile.mode == "fake" and any("bernoulli" in op or "dropout" in op for op in found.profile.ops.name):
        lines.append(
            "Fake tensors pass as a CPU's: attention with dropout holds its scores, and dropout two bytes an element, "
            "which a GPU does not. It may fit better than this"
        )
    if not found.samples:
        lines.append("How many samples the batch has is not known, so neither microbatches nor larger batches are")
    if found.profile.is_shared:
        lines.append(NOT_LOOKED_AT)
    if found.mixes:
        lines.append(NOT_RECOMMENDED)
    yield "\n".join(lines)


def _next(found: Fits, source: str, rows: Sequence[FitRow] | None = None) -> Iterator[str]:
    """Say what to do for the first device that takes the recorded samples in microbatches, or under a plan."""
    for row in (rows or found.rows) if source else ():
        way = row.best
        if way is None or (way.plan is None and way.microbatches == 1) or row.samples != found.samples:
            continue
        gpu, on = row.device, f" on {row.gpu}" if len(found.rows) > 1 else ""
        own = found.profile.recipe is None and ":" in source
        if way.microbatches > 1:
            plan = f' after autockpt.apply(model, budget="{_gib(gpu.budget_bytes)}")' if way.plan is not None else ""
            yield (
                f"Next{on}: {way.microbatches} times backward of loss / {way.microbatches}, each on {way.samples} "
                f"samples, then optimizer.step(){plan}"
            )
        elif own:
            yield f'Next{on}: autockpt.apply(model, budget="{_gib(gpu.budget_bytes)}")'
        else:
            yield f"Next{on}: autockpt solve {source} --budget {_gib(gpu.usable_bytes)} -o plan.json"
        return


def _gib(n_bytes: int) -> str:
    """Write bytes as a budget, rounded down."""
    return f"{100 * n_bytes // 2**30 / 100:.2f}GiB"


def _document(found: Fits) -> dict[str, object]:
    """The figures as JSON has them, in bytes, ratios and samples."""
    return {
        "kind": "fit",
        "model": found.profile.model,
        "predicted_plain_peak_bytes": found.profile.plain_peak_bytes,
        "samples": found.samples,
        **_world_document(found.profile),
        "overheads_by_roofline": found.by_roofline,
        "microbatches_change_the_result": found.mixes,
        "rows": [_row_document(row) for row in found.rows],
        "lowest": found.lowest,
        "switches": [
            {
                "switch": each.switch.name,
                "timed_for": found.timed_for,
                "predicted_peak_bytes": each.switch.peak_bytes,
                "predicted_overhead": None if found.host_bound else each.overhead,
                "autockpt_overhead_at_that_peak": None if found.host_bound else each.ours,
            }
            for each in found.switches
        ],
        "devices": {row.gpu: _device_document(row.device) for row in found.rows},
    }


def _world_document(profile: Profile) -> dict[str, object]:
    """What is known of one rank of several; nothing where there is one alone."""
    world = profile.world
    if world is None:
        return {}
    held = {f"predicted_{name}": size for name, size in asdict(held_by(profile, world)).items()}
    return {"rank": {"ranks": world.ranks, "way": world.way, **held}}


def _row_document(row: FitRow) -> dict[str, object]:
    return {
        "device": row.gpu,
        "samples": row.samples,
        "fits": _verdict(row),
        "predicted_overhead": row.overhead if row.plan is not None and not row.host_bound else None,
        "host_bound": row.host_bound,
        "predicted_peak_bytes": row.plan.peak_bytes if row.plan is not None else None,
        "predicted_minimum_bytes": row.minimum_bytes,
        "predicted_floor_bytes": row.floor_bytes,
        "largest_batch": row.largest,
        "largest_plain_batch": row.largest_plain,
        "ways": [way_document(row, way) for way in row.ways],
    }


def _device_document(gpu: Gpu) -> dict[str, object]:
    return {
        "title": gpu.title,
        "memory": gpu.memory,
        "usable_bytes": gpu.usable_bytes,
        "half_flops": gpu.roofline and gpu.roofline.half_flops,
        "single_flops": gpu.roofline and gpu.roofline.single_flops,
        "bytes_per_second": gpu.roofline and gpu.roofline.bytes_per_second,
        "source": gpu.source,
    }
