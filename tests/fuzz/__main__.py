"""`python -m tests.fuzz [CASES]`: check many drawn cases and print what became of them."""

from __future__ import annotations

import sys
import time

from tests.fuzz.run import LEAST_SHARE, Tally, fuzz

CHUNK = 100

if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    tally, began, number = Tally(), time.monotonic(), first
    while len(tally.verdicts) < wanted:
        number += 1
        fuzz(min(CHUNK, wanted - len(tally.verdicts)), number=number, tally=tally)
        print(f"{len(tally.verdicts)} cases, {time.monotonic() - began:.0f} seconds", file=sys.stderr, flush=True)  # noqa: T201
    print(tally)  # noqa: T201
    sys.exit(tally.share < LEAST_SHARE)
