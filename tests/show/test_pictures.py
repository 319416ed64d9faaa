"""Plots and HTML: what they show is what the judge and the reports say."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from autockpt import Frontier, MaxBatch, MissingExtra, Plan, Profile, Verification, frontier, solve
from autockpt.solvers import format_bytes
from tests.doors import CHART_LAYERS, Difference, Throughput, follow_course, profile_page

from ..handmade import MIB, chain_profile

CHAIN = chain_profile()
PLANS = [Plan(), Plan.of(["h.0", "h.2"]), Plan.of([["h.2", "h.3"]]), solve(CHAIN, "min")]
IDS = ["plain", "two", "run", "min"]


def with_optimizer() -> Profile:
    return msgspec.structs.replace(CHAIN, optimizer="SGD", optimizer_step_bytes=90 * MIB)


def untimed() -> Profile:
    calls = (msgspec.structs.replace(call, enter_seconds=0.0, exit_seconds=0.0) for call in CHAIN.calls)
    saves = msgspec.structs.replace(CHAIN.saves, seconds=(0.0,) * len(CHAIN.saves))
    return msgspec.structs.replace(CHAIN, plain_seconds=0.0, calls=tuple(calls), saves=saves)


@pytest.mark.parametrize("plan", PLANS, ids=IDS)
def test_the_course_of_a_step_is_as_long_as_its_seconds(plan: Plan) -> None:
    course = follow_course(CHAIN, plan)
    assert course.timeline == plan.timeline(CHAIN)
    assert list(course.edges) == sorted(course.edges)
    assert course.forward_seconds == pytest.approx(0.08)
    starts, recompute_seconds = [start for start, _ in course.replays], sum(seconds for _, seconds in course.replays)
    assert course.backward_seconds == course.edges[-1] == pytest.approx(0.24 + recompute_seconds)
    assert len(starts) == len(plan.segments)
    if plan.recompute_seconds:
        assert recompute_seconds == pytest.approx(plan.recompute_seconds)
    for step, start in zip(course.timeline.steps, course.edges, strict=False):
        if step.restored_bytes:  # nothing is brought back before a replay has begun
            assert starts[0] <= start + 1e-12
        assert (start <= course.forward_seconds) or step.phase != "forward"


def test_replays_stand_one_after_the_other_where_backward_needs_them() -> None:
    course = follow_course(CHAIN, Plan.of(["h.0", "h.2"]))
    (first, seconds), (second, _) = course.replays
    # Backward is twice as long as forward; what h.2 and h.0 save last is saved 0.03 and 0.07 before forward ends.
    assert first == pytest.approx(0.08 + 2 * 0.03)
    assert second == pytest.approx(0.08 + 2 * 0.07 + seconds)


@pytest.mark.parametrize("plan", PLANS, ids=IDS)
def test_the_areas_are_the_timeline(plan: Plan) -> None:
    pytest.importorskip("matplotlib")
    (ax,) = plan.plot(CHAIN).axes
    timeline, course = plan.timeline(CHAIN), follow_course(CHAIN, plan)
    drawn = {patch.get_label(): patch.get_data() for patch in ax.patches}
    below = [0] * len(timeline.steps)
    for _, _, name, parts in CHART_LAYERS:
        sizes = [sum(getattr(step, part) for part in parts) for step in timeline.steps]
        if any(sizes):
            data = drawn[name]
            assert list(data.baseline) == below
            assert [top - low for top, low in zip(data.values, below, strict=True)] == sizes
            assert tuple(data.edges) == course.edges
            below = list(data.values)
        else:
            assert name not in drawn
    assert below == [step.level_bytes for step in timeline.steps] == list(drawn["level"].values)
    assert ("plain step" in drawn) == bool(plan.segments)
    (peak,) = (line for line in ax.lines if line.get_label() == "peak")
    (x,), (y,) = peak.get_data()
    assert y == timeline.peak_bytes == max(below)
    assert course.edges[timeline.peak] <= x <= course.edges[timeline.peak + 1]
    budget = [line.get_ydata()[0] for line in ax.lines if line.get_label() == "budget"]
    assert budget == []  # none of them was made for one
    assert ax.get_ylim()[1] > max(below)


def test_the_budget_is_a_line_and_the_plain_step_stands_behind() -> None:
    pytest.importorskip("matplotlib")
    plan = solve(CHAIN, "80MiB")
    (ax,) = plan.plot(CHAIN).axes
    assert [line.get_ydata()[0] for line in ax.lines if line.get_label() == "budget"] == [80 * MIB]
    (plain,) = (patch for patch in ax.patches if patch.get_label() == "plain step")
    assert list(plain.get_data().values) == [step.level_bytes for step in Plan().timeline(CHAIN).steps]
    assert ax.get_ylim()[1] > max(plain.get_data().values)
    assert "feasible" not in ax.get_title(loc="left") and "Chain" in ax.get_title(loc="left")


@pytest.mark.parametrize("profile", [with_optimizer(), untimed()], ids=["optimizer", "untimed"])
def test_other_profiles_are_drawn_too(profile: Profile) -> None:
    pytest.importorskip("matplotlib")
    (ax,) = profile.plot().axes
    timeline = Plan().timeline(profile)
    (peak,) = (line for line in ax.lines if line.get_label() == "peak")
    assert peak.get_ydata()[0] == timeline.peak_bytes
    said = {text.get_text() for text in ax.texts}
    assert {"forward", "backward"} <= said
    assert ("optimizer" in said) == bool(profile.optimizer)


def test_the_frontier_beside_peers_and_budgets() -> None:
    pytest.importorskip("matplotlib")
    found = frontier(CHAIN, points=5)
    peers = {"a peer": [(60 * MIB, 0.5), (90 * MIB, 0.25)]}
    (ax,) = found.plot(peers=peers, budgets={"small": "64MiB"}).axes
    lines = {line.get_label(): line for line in ax.lines}
    own = lines["autockpt, predicted"].get_data()
    assert list(zip(*own, strict=True)) == [
        (plan.peak_bytes, 100 * plan.recompute_overhead) for plan in reversed(found.plans)
    ]
    assert list(zip(*lines["a peer"].get_data(), strict=True)) == [(60 * MIB, 50), (90 * MIB, 25)]
    assert [text.get_text() for text in ax.texts if text.get_rotation() == 90] == ["small"]
    assert any(list(line.get_xdata()) == [64 * MIB] * 2 for line in ax.lines)
    low, high = ax.get_xlim()
    assert low < min(found.minimum_bytes, 60 * MIB) and found.plain_peak_bytes < high
    plain = Frontier(solver="auto", plans=found.plans[:1])
    assert len(plain.plot().axes) == 1


def test_a_figure_is_its_own_and_shows_itself() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    figure: Any = CHAIN.plot()
    data, size = figure._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert set(size) == {"width", "height"}
    assert pyplot.get_fignums() == before
    theirs = figure.add_subplot()
    assert Plan().plot(CHAIN, ax=theirs) is figure


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    plan = Plan.of(["h.0"])
    plots: list[Any] = [CHAIN.plot, lambda: plan.plot(CHAIN), chain_frontier().plot]
    for draw in plots:
        with pytest.raises(MissingExtra, match=r'pip install "autockpt\[plot\]"'):
            draw()
    assert "h.0" in plan._repr_html_()
    assert CHAIN._repr_html_()
    assert chain_frontier()._repr_html_()


def chain_frontier() -> Frontier:
    return Frontier(model="<Chain & co>", solver="auto", plans=(Plan(plain_peak_bytes=MIB, peak_bytes=MIB),))


class Reader(HTMLParser):
    """Collects what a page says, and holds that each element that opens is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.said: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data.strip())


def test_html_says_what_explain_says_and_escapes_names() -> None:
    name = "<script>alert('x')</script> & co"
    profile = msgspec.structs.replace(CHAIN, model=name)
    plan = msgspec.structs.replace(solve(CHAIN, "80MiB"), model=name)
    found = msgspec.structs.replace(frontier(CHAIN, points=4), model=name)
    fake = msgspec.structs.replace(profile, mode="fake")
    saved_bytes: Any = profile_page(CHAIN).document["activation_bytes"]
    for shown, words in (
        (profile, ["recorded plain peak", "h.0 … h.3", format_bytes(saved_bytes)]),
        (plan, ["budget", "80.00 MiB", "predicted recompute overhead"]),
        (found, ["recorded plain step", *(f"{each.recompute_overhead:.1%}" for each in found.plans)]),
        (frontier(fake, points=2), ["predicted plain step", "predicted minimum"]),
        (Plan(), ["Recomputed: nothing, every call is kept"]),
        (Plan.of(["<b>.0"]), ["<b>.0"]),
    ):
        assert isinstance(shown, (Profile, Plan, Frontier))
        page = Reader(shown._repr_html_())
        assert page.tags <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
        explained = shown.explain()
        printed: list[str] = []
        shown._repr_pretty_(SimpleNamespace(text=printed.append), False)
        assert printed == [explained]
        for word in words:
            assert word in page.said
            assert word in explained
        if shown.model:
            assert name in " ".join(page.said)


def test_html_of_what_verify_found() -> None:
    noise = Difference(kind="gradient", name="<w>", step=1, elements=8, different_elements=2, largest_difference=0.5)
    exact = Verification(
        verdict="exact",
        model="Chain",
        device="cpu",
        torch_version="2.13.0",
        deterministic=False,
        steps=1,
        plain_runs=2,
        segments=3,
        replays=3,
        compared={"gradient": 7, "loss": 1},
    )
    page = Reader(exact._repr_html_())
    assert {"8", "3 replays", "Exact: the planned step of Chain is the plain step, bit for bit"} <= {*page.said}
    noisy = msgspec.structs.replace(exact, verdict="different", differences=(noise,))
    assert {"gradient of <w>", "2 of 8", "0.5"} <= {*Reader(noisy._repr_html_()).said}


def test_html_of_the_largest_batch() -> None:
    small, large = (
        msgspec.structs.replace(PLANS[3], plain_seconds=seconds, recompute_seconds=0.0) for seconds in (1.0, 4.0)
    )
    found = MaxBatch(
        batch_size=8,
        plan=large,
        plain_batch_size=4,
        throughputs=(Throughput(batch_size=4, plan=small), Throughput(batch_size=8, plan=large)),
    )
    said = Reader(found._repr_html_()).said
    assert "8 samples, and 4 without recomputing" in said[0]
    assert said[said.index("best") - 5 : said.index("best")] == ["4", *said[said.index("4") + 1 :][:4]]


def test_a_long_table_is_cut() -> None:
    page = Reader(Plan.of([f"layer{i}" for i in range(40)])._repr_html_())
    assert "and 10 more" in page.said


def test_pictures_import_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    CHAIN.save(tmp_path / "profile.json")
    code = (
        "import sys, autockpt\n"
        f"profile = autockpt.Profile.load({str(tmp_path / 'profile.json')!r})\n"
        "profile.plot(); profile._repr_html_()\n"
        "sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
