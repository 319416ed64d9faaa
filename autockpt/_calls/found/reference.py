"""How a patched forward refers to its module, without keeping the module alive.

    module.__dict__["forward"] ──▶ partial ──▶ Reference ··▶ module          (──▶ strong, ··▶ weak)

Otherwise the two would form a reference cycle. A model that nobody holds any more would stay on its device until
Python's collector runs.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

from torch import nn


class Reference:
    """A weak reference to a module. Its deep copies refer to the copy of the module.

    Attributes:
        to: returns the module; None if it is gone.
    """

    def __init__(self, module: nn.Module) -> None:
        self.to = weakref.ref(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference:
        module = self.to()
        return self if module is None else Reference(copy.deepcopy(module, memo))
