"""Switches of transformers' models that work against a plan."""

from __future__ import annotations

import weakref

from torch import nn

CHECKPOINTING = (
    "gradient_checkpointing is on, and its regions would be recomputed whole: it is switched off while the model is "
    "held to a budget, and autockpt.remove(model) switches it on again"
)

CACHE = (
    "use_cache is on in training: keys and values of every layer are kept for a next token that never comes. "
    "Set model.config.use_cache = False"
)


class Switches:
    """Those of a model that were switched off, to be put back."""

    def __init__(self) -> None:
        self._off: list[weakref.ref[nn.Module]] = []

    def off(self, model: nn.Module) -> list[str]:
        """Switch off what recomputes regions by itself; return what is to be said of that, and of other switches."""
        said = []
        for module in model.modules():
            attributes = vars(module)
            if attributes.get("gradient_checkpointing") is True and "_gradient_checkpointing_func" in attributes:
                attributes["gradient_checkpointing"] = False
                self._off.append(weakref.ref(module))
                said.append(CHECKPOINTING)
            config = attributes.get("config")
            if getattr(config, "use_cache", False) is True and hasattr(module, "generation_config"):
                said.append(CACHE)
        return list(dict.fromkeys(said))

    def put_back(self) -> None:
        """Switch on again what was switched off."""
        for reference in self._off:
            module = reference()
            if module is not None:
                vars(module)["gradient_checkpointing"] = True
        self._off.clear()
