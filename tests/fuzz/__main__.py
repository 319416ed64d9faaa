"""`python -m tests.fuzz [CASES]`, `python -m tests.fuzz loops [CASES]`: check many drawn models, or loops, and tell."""

from __future__ import annotations

import sys
import time

from tests.fuzz.run import LEAST_SELECTIVE_SHARE, LEAST_SHARE, Tally, fuzz, fuzz_loops


def main(count: int) -> int:
    began = time.monotonic()

    def progress(tally: Tally) -> None:
        if len(tally.verdicts) % 100 == 0:
            print(f"{len(tally.verdicts)} cases, {time.monotonic() - began:.0f} seconds", file=sys.stderr)  # noqa: T201

    tally = fuzz(count, progress=progress)
    print(tally)  # noqa: T201
    return int(tally.share < LEAST_SHARE or tally.selective_share < LEAST_SELECTIVE_SHARE)


def main_of_loops(count: int) -> int:
    found = fuzz_loops(count, progress=lambda found: print(dict(found), file=sys.stderr))  # noqa: T201
    print(f"{found.total()} loops: {dict(found)}, 0 differences")  # noqa: T201
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["loops"]:
        sys.exit(main_of_loops(int(sys.argv[2]) if len(sys.argv) > 2 else 200))
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
