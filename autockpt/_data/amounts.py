"""The types of bytes and seconds in what is written down: never negative."""

from __future__ import annotations

from typing import Annotated

import msgspec

Bytes = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
