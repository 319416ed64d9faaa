"""What a patch knows of its module: it does not keep that alive.

    module.__dict__["forward"] ──▶ partial ──▶ Reference ··▶ module          (──▶ strong, ··▶ weak)

Else the two would be a circle, and a model that nobody has any more would stay on its device until Python collects.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

from torch import nn


class Reference:
    """Leads to a module; its copies and pickles to the copy of that.

    Attributes:
        to: returns the module; None where it is gone.
    """

    def __init__(self, module: nn.Module) -> None:
        self.to = weakref.ref(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference:
        module = self.to()
        return self if module is None else Reference(copy.deepcopy(module, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return Reference, (self.to(),)
