"""Draw the pictures of the README and of the pages: `make picture`."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from autockpt import Profile, solve

PICTURES = Path(__file__).parent / "pictures"
PICTURE = PICTURES / "memory.png"

MOVES = Path(__file__).parents[1] / "benchmarks" / "offload" / "results.json"
LINES = {"recompute": "recompute alone", "25GB/s": "and move, 25 GB/s", "50GB/s": "and move, 50 GB/s"}
DRAWN = (("gpt2-xl", "a100-80gb", "GPT-2 XL, A100"), ("gpt2-xl", "h100", "GPT-2 XL, H100"))


def draw() -> None:
    """Draw what stands over a step of GPT-2 XL, plain and inside a budget, both predicted; the same each time."""
    profile = Profile.load("gpt2-xl")
    figure = solve(profile, "22GiB").plot(profile)
    figure.savefig(PICTURE, dpi=144, metadata={"Software": None})


def draw_moves() -> None:
    """Draw what budgets cost with and without moves beside the computing, as `benchmarks/offload` predicts it."""
    rows = json.loads(MOVES.read_text())["rows"]
    figure = Figure(figsize=(8, 3), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(DRAWN), sharey=True)
    for axes, (model, device, title) in zip(panels, DRAWN, strict=True):
        own = [row for row in rows if (row["model"], row["device"]) == (model, device)]
        for name, label in LINES.items():
            points = [(100 * row["share"], row[name]["overhead"]) for row in own if row[name]["overhead"] is not None]
            axes.plot([x for x, _ in points], [100 * y for _, y in points], marker="o", label=label)
        axes.set_title(f"{title} (predicted)", loc="left", fontsize="medium")
        axes.set_xlabel("budget, % of what a plain step adds")
    panels[0].set_ylim(0, 1.05 * panels[0].get_ylim()[1])
    panels[0].set_ylabel("overhead, %")
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(PICTURES / "moving.png", dpi=144, metadata={"Software": None})


if __name__ == "__main__":
    draw()
    draw_moves()
