"""Where the tests run: on the CPU, and on a CUDA device where there is one."""

from __future__ import annotations

import pytest

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
