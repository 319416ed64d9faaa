"""Time solving on large steps; or solve as the frozen version does, and compare."""

from __future__ import annotations

import argparse

from benchmarks.solving import compare, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--shipped", action="store_true", help="the frozen profiles, before and after")
    which.add_argument("--small", action="store_true", help="eight small models on this CPU, before and after")
    parser.add_argument("--models", nargs="+", default=[])
    asked = parser.parse_args()
    if asked.shipped:
        compare.compare_shipped(asked.models)
    elif asked.small:
        compare.compare_small(asked.models)
    else:
        run.run_models(asked.models or list(run.PROFILES))


if __name__ == "__main__":
    main()
