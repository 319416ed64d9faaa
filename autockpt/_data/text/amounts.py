"""The types of bytes, seconds and factors in what is written down: never negative, nor more than there can be."""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_BYTES = 2**48
"""More than any memory has."""

MOST_SUM = 2**60
"""Of all tensors of a step: solvers count below 2⁶³."""

MOST_SECONDS = 1e9

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]
LEAST_FACTOR, MOST_FACTOR = 0.1, 10.0
"""Between any two hosts that train models."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
Factor = Annotated[float, msgspec.Meta(ge=LEAST_FACTOR, le=MOST_FACTOR)]
