"""What a verification found, as plain data: what ``autockpt verify --json`` prints. No torch."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from ..._data.text.document import Document

Kind = Literal["output", "loss", "gradient", "input gradient", "buffer", "parameter", "generator", "replay"]
Verdict = Literal["exact", "different", "not repeatable", "nothing recomputed"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that is not bit for bit the same after two runs of the same step.

    Attributes:
        kind: what it is.
        name: which one; for outputs the path in what the model returned, for replays the call.
        step: in which of the steps, from 1.
        what: how they differ where values cannot be compared (shape, dtype, None); else empty.
        elements: how many elements it has; of a generator, bytes of its state.
        different_elements: how many of them differ.
        largest_difference: largest absolute difference; None where it is no number (infinities, generators).
        relative_difference: that over the largest absolute value of the first run; None where that is 0 or no number.
    """

    kind: Kind
    name: str
    step: int
    what: str = ""
    elements: int = 0
    different_elements: int = 0
    largest_difference: float | None = None
    relative_difference: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name, whatever the step: noise may show in one step and not in another."""
        return self.kind, self.name


class Verification(
    Document, msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="autockpt.verification/1"
):
    """Whether a planned step does what the plain step does, bit for bit.

    Attributes:
        verdict: ``exact``: nothing differs, and segments did run again. ``different``: something differs that is the
            same after every plain run, or the planned step failed. ``not repeatable``: plain runs differ from one
            another, and the planned step only where they do; the plan is not to blame, nor is it cleared there.
            ``nothing recomputed``: nothing differs, and nothing was tested either, since no segment ran again.
        model: class of the model.
        device: where it ran.
        torch_version: under which torch.
        deterministic: whether ``torch.use_deterministic_algorithms`` was on.
        steps: how many steps, one after the other, each run had.
        plain_runs: how many times the plain steps ran; more than twice where the second did not show enough.
        segments: how many segments the plan has.
        replays: how many times one of them ran again, in all steps.
        not_replayed: the segments that never did, by their calls.
        not_met: units, to keep or to skip, of the other segments that forward never came to.
        compared: how many tensors were compared, by kind, in all steps.
        differences: between plain and planned run, in the order of the step.
        plain_differences: between plain runs, in the order of the step.
        wrong_replays: what replays made differently from their forwards, if the plan is to blame: these calls cannot be
            repeated exactly. Looked for only if the planned steps differ from the plain ones.
        asked: the budget that the plan was made for, where it is text; else empty.
        budget_bytes: the budget that the plan keeps to, as it predicts; None for a plan by hand.
        planned_plain_peak_bytes: the plan's prediction for the peak of the plain step that it was made for, the step of
            its optimizer included; None for a plan by hand.
        planned_peak_bytes: the same for the planned step.
        predicted_plain_peak_bytes: peak of the plain step that was measured, predicted from a recording of it; None
            for a plan by hand, and where it cannot be recorded.
        predicted_peak_bytes: the same under the plan.
        measured_plain_peak_bytes: measured peak of one forward and backward. It includes parameters, buffers, the
            batch, the state of the optimizer, and, if the plan is for steps that begin with gradients, those too. None
            if it was not measured.
        measured_peak_bytes: the same under the plan.
        optimizer_bytes: bytes of the optimizer's state that both measured peaks include.
        predicted_plain_seconds: seconds of the plain step, as the plan has them.
        predicted_seconds: the same for the planned step.
        measured_plain_seconds: seconds of one forward and backward.
        measured_seconds: the same under the plan.
        error: what the planned step raised and the plain one did not; None if nothing.
        notes: what could not be put back between the runs.
    """

    PAGE: ClassVar[str] = "explain.verification.verification_page"

    verdict: Verdict
    model: str
    device: str
    torch_version: str
    deterministic: bool
    steps: int
    plain_runs: int
    segments: int
    replays: int
    not_replayed: tuple[str, ...] = ()
    not_met: tuple[str, ...] = ()
    compared: dict[Kind, int]
    differences: tuple[Difference, ...] = ()
    plain_differences: tuple[Difference, ...] = ()
    wrong_replays: tuple[Difference, ...] = ()
    asked: str = ""
    budget_bytes: int | None = None
    planned_plain_peak_bytes: int | None = None
    planned_peak_bytes: int | None = None
    predicted_plain_peak_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    measured_plain_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    optimizer_bytes: int = 0
    predicted_plain_seconds: float | None = None
    predicted_seconds: float | None = None
    measured_plain_seconds: float | None = None
    measured_seconds: float | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether segments ran again and nothing differs: the verdict is ``exact``."""
        return self.verdict == "exact"

    @property
    def repeatable(self) -> bool:
        """Whether all plain runs were bit for bit the same."""
        return not self.plain_differences

    @property
    def first(self) -> Difference | None:
        """The first difference that plain runs do not show among themselves; None if there is none."""
        noise = {difference.key for difference in self.plain_differences}
        return next((difference for difference in self.differences if difference.key not in noise), None)

    @property
    def over_noise(self) -> float | None:
        """The highest ratio of the planned run's difference to the noise of plain runs, which differ from one another.

        It is the highest over the tensors that differ between planned and plain runs, and also between plain runs. None
        if there are no such tensors. If it is far above 1, the plan is suspect after all.
        """
        noise: dict[tuple[str, str], float] = {}
        for each in self.plain_differences:
            noise[each.key] = max(noise.get(each.key, 0.0), each.largest_difference or 0.0)
        ratios = [
            each.largest_difference / noise[each.key]
            for each in self.differences
            if each.largest_difference and noise.get(each.key)
        ]
        return max(ratios, default=None)
