"""Run a module on the fake CUDA device of the tests: ``python -m benchmarks.gpu.fake MODULE ...``."""

from __future__ import annotations

import runpy
import sys

from tests.fake_cuda import bindings
from tests.fake_cuda.device import Options, set_options

SEGMENTS = Options(mib_bytes=1 << 14)
"""Toy models lie in segments as large ones do on a GPU."""


def install() -> None:
    """Let torch find the device in this process."""
    bindings.install()
    set_options(SEGMENTS)


def main() -> None:
    """Install the device, and run the module as if nothing had been in between."""
    install()
    _, module, *options = sys.argv
    sys.argv = [module, *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
