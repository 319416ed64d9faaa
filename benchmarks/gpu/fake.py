"""Run a module on the fake CUDA device of the tests: ``python -m benchmarks.gpu.fake MODULE ...``."""

from __future__ import annotations

import runpy
import sys

from tests.fake_cuda import bindings


def main() -> None:
    """Install the device, and run the module as if nothing had been in between."""
    bindings.install()
    _, module, *options = sys.argv
    sys.argv = [module, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
