"""The page of a verification: the verdict first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...solvers.units import format_like, format_seconds
from ..page import Page, PageTable, counted
from .common import listed

if TYPE_CHECKING:  # it comes with torch
    from ..._check.verify import Difference, Verification

NEAR = 0.01
"""A measured peak may be above the budget by up to this share of it without a remark: a loss that was not given may be
the cause."""

CLOSE = 0.005
"""A measured peak may be above the prediction for the same step by up to this share of it without a remark."""

_LISTED = 12  # differences in a table; the rest are counted

DETERMINISTIC = (
    "torch.use_deterministic_algorithms(True) makes more operators repeat themselves; with warn_only=True attention on "
    "a GPU does not. cuBLAS asks for CUBLAS_WORKSPACE_CONFIG=:4096:8 then, before the process begins"
)


def headline(found: Verification) -> str:
    """Return the verdict and its reason in a sentence."""
    if found.verdict == "exact":
        return f"Exact: the planned step of {found.model} is the plain step, bit for bit"
    if found.verdict == "nothing recomputed":
        if not found.segments:
            return "Nothing recomputed: the plan keeps every call, so there was nothing to verify"
        return (
            f"Nothing recomputed: no segment of the plan ran again in a step of {found.model}, so there was nothing to "
            "verify. Its calls are not made, or need no gradients"
        )
    if found.verdict == "not repeatable":
        noise = found.plain_differences[0]
        return (
            f"Not repeatable: {_placed(noise, found)} differs between two plain runs of {found.model}: "
            f"{_extent(noise)}. That is not the plan's doing"
        )
    said = f"the planned step of {found.model} is not the plain one, which does not repeat itself either"
    if found.first is not None:
        said = f"{_placed(found.first, found)} is not that of the plain step of {found.model}: {_extent(found.first)}"
    elif found.error is not None:
        said = f"the planned step of {found.model} fails, and the plain one does not: {found.error}"
    if found.wrong_replays:
        wrong = found.wrong_replays[0]
        said += (
            f". The plan is to blame: {wrong.name} cannot be repeated exactly, and its replay is not its forward: "
            f"{_extent(wrong)}. Keep that call"
        )
    return f"Different: {said}"


def verification_page(found: Verification) -> Page:
    """Lay out the results of a verification."""
    compared = ", ".join(counted(count, kind) for kind, count in found.compared.items())
    tensors = sum(found.compared.values())
    left = {
        "Segments that never ran again": found.not_replayed if found.replays else (),
        "Units to keep or skip that forward never came to": found.not_met,
        "Notes": found.notes,
    }
    return Page(
        title=headline(found),
        figures=[
            ("compared", f"{tensors:,}", f"{compared}; in {counted(found.steps, 'step')}"),
            ("segments", str(found.segments), counted(found.replays, "replay")),
            ("plain runs", str(found.plain_runs), "all the same" if found.repeatable else "not the same"),
            ("ran on", found.device, f"torch {found.torch_version}"),
            ("deterministic algorithms", "on" if found.deterministic else "off", ""),
        ],
        blocks=[*_steps(found), *_differences(found), *(listed(*each) for each in left.items() if each[1])],
    )


def _bytes(found: Verification, n_bytes: int) -> str:
    return format_like(n_bytes, found.asked)


def _steps(found: Verification) -> Iterator[str | PageTable]:
    """Yield a table of those figures of the plain and the planned step that are known."""
    rows = [["budget", "-", _bytes(found, found.budget_bytes)]] if found.budget_bytes is not None else []
    predicted = (found.predicted_plain_peak_bytes, found.predicted_peak_bytes)
    planned = (found.planned_plain_peak_bytes, found.planned_peak_bytes)
    if all(planned) and planned != predicted:
        rows.append(["predicted peak, the plan's own step", *(_bytes(found, each or 0) for each in planned)])
    for what, figure, said in (("peak", "peak_bytes", partial(_bytes, found)), ("step", "seconds", format_seconds)):
        for how in ("predicted", "measured"):
            figures = [getattr(found, f"{how}_{plain}{figure}") for plain in ("plain_", "")]
            rows += [[f"{how} {what}", *map(said, figures)]] if all(figures) else []
    if rows:
        yield PageTable(header=["", "plain", "planned"], rows=rows, below=_slower(found))
    yield from _alarms(found)
    if found.measured_peak_bytes is not None:
        state = ""
        if found.optimizer_bytes:
            state = f"with the {_bytes(found, found.optimizer_bytes)} of an optimizer's state, "
        yield f"Measured is one forward and backward, {state}without {'its step' if state else 'an optimizer'}"
    if found.error is not None and found.error not in headline(found):
        yield f"The planned step raised {found.error}"


def _slower(found: Verification) -> str:
    """Say by how much the planned step is slower: the seconds that are predicted and measured are of two clocks."""
    shares = [
        f"{seconds / plain - 1:.1%} {how}"
        for how, plain, seconds in (
            ("predicted", found.predicted_plain_seconds, found.predicted_seconds),
            (
                "measured, under an instrument that takes its own time",
                found.measured_plain_seconds,
                found.measured_seconds,
            ),
        )
        if plain and seconds
    ]
    return f"slower: {', '.join(shares)}" if shares else ""


def _alarms(found: Verification) -> Iterator[str]:
    """Say if the measured peak is above the prediction for this step, or above the budget."""
    measured_bytes = found.measured_peak_bytes or 0
    wrong_bytes = measured_bytes - (found.predicted_peak_bytes or measured_bytes)
    above_bytes = measured_bytes - (found.budget_bytes or measured_bytes)
    if wrong_bytes > CLOSE * measured_bytes:
        yield f"The measured peak stands {_bytes(found, wrong_bytes)} above what is predicted of the very step"
    if above_bytes > NEAR * (found.budget_bytes or 0):
        cause = "the plan is that of another model, batch or loss"
        yield f"The measured peak stands {_bytes(found, above_bytes)} above the budget: {cause}"


def _differences(found: Verification) -> Iterator[str | PageTable]:
    if found.wrong_replays:
        yield _table("Replays against their forwards", found.wrong_replays)
    if found.differences:
        yield _table("Planned against plain", found.differences)
    elif not found.repeatable and found.error is None:
        yield "The planned run was the same as the first plain run, bit for bit"
    if found.repeatable:
        return
    yield _table("Plain against plain", found.plain_differences)
    if found.over_noise is not None:
        times = f"{found.over_noise:.3g} times as far"
        yield f"The planned run is at most {times} from the plain one as plain runs are from one another"
    if not found.deterministic:
        yield DETERMINISTIC


def _table(title: str, differences: Sequence[Difference]) -> PageTable:
    return PageTable(
        title=f"{title}: {counted(len(differences), 'difference')}, in the order of the step",
        header=["step", "what", "elements", "largest", "relative"],
        rows=[
            [
                str(each.step),
                f"{_called(each)}: {each.what}" if each.what else _called(each),
                f"{each.different_elements} of {each.elements}" if each.elements else "-",
                _number(each.largest_difference),
                _number(each.relative_difference),
            ]
            for each in differences[:_LISTED]
        ],
        below=f"and {len(differences) - _LISTED} more" if len(differences) > _LISTED else "",
        elide="what",
    )


def _called(difference: Difference) -> str:
    kinds = {"gradient": "gradient of", "input gradient": "gradient of input"}
    return f"{kinds.get(difference.kind, difference.kind)} {difference.name}".rstrip()


def _placed(difference: Difference, found: Verification) -> str:
    return _called(difference) + (f", step {difference.step} of {found.steps}," if found.steps > 1 else "")


def _extent(difference: Difference) -> str:
    if difference.what:
        return difference.what
    text = f"{difference.different_elements} of {difference.elements} elements"
    if difference.largest_difference is None:
        return text
    return f"{text}, by up to {_number(difference.largest_difference)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
