"""What the system says of the machine. No torch."""

from __future__ import annotations

import os


def physical_bytes() -> int | None:
    """Return the size of the machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
