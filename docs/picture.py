"""Draw the picture of the README: `make picture`."""

from __future__ import annotations

from pathlib import Path

from autockpt import Profile, solve

PICTURE = Path(__file__).parent / "pictures" / "memory.png"


def draw() -> None:
    """Draw what stands over a step of GPT-2 XL, plain and inside a budget, both predicted; the same each time."""
    profile = Profile.load("gpt2-xl")
    figure = solve(profile, "22GiB").plot(profile)
    figure.savefig(PICTURE, dpi=144, metadata={"Software": None})


if __name__ == "__main__":
    draw()
