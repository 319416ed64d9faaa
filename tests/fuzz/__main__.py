"""`python -m tests.fuzz [CASES]`: check many drawn cases and print what became of them."""

from __future__ import annotations

import sys
import time

from tests.fuzz.run import LEAST_SELECTIVE_SHARE, LEAST_SHARE, Tally, fuzz


def main(count: int) -> int:
    began = time.monotonic()

    def progress(tally: Tally) -> None:
        if len(tally.verdicts) % 100 == 0:
            print(f"{len(tally.verdicts)} cases, {time.monotonic() - began:.0f} seconds", file=sys.stderr)  # noqa: T201

    tally = fuzz(count, progress=progress)
    print(tally)  # noqa: T201
    return int(tally.share < LEAST_SHARE or tally.selective_share < LEAST_SELECTIVE_SHARE)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
