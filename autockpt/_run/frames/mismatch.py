"""Saying that a model does not do what its plan was made for, where that costs memory only."""

from __future__ import annotations

import warnings


def mismatch(key: str, how: str) -> None:
    """Warn that the call `key` does not fit its plan; where warnings are shown once, so is this one."""
    warnings.warn(
        f"{key} {how}: what this costs is memory, not exactness. Make the plan anew for the model as it is now.",
        stacklevel=2,
    )
