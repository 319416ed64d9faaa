"""Switches of transformers' models that work against a plan: gradient_checkpointing and use_cache."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

CHECKPOINTING = (
    "gradient_checkpointing is on, and its regions would be recomputed whole: it is switched off while the model is "
    "held to a budget, and autockpt.remove(model) switches it on again"
)

RECORDED = (
    "gradient_checkpointing is on, and is switched off while a step is recorded: so is it under apply with a budget, "
    "which recomputes less. Beside a plan that is given, switch it off: model.activation_checkpointing_disable(), or "
    "before transformers 5.23 gradient_checkpointing_disable()"
)

BESIDE = (
    "gradient_checkpointing is on, and its regions are recomputed whole beside the plan that is given: "
    "model.activation_checkpointing_disable() switches it off; before transformers 5.23 that was "
    "gradient_checkpointing_disable()"
)

CACHE = (
    "use_cache is on in training: keys and values of every layer are kept for a next token that never comes. "
    "Set model.config.use_cache = False"
)


class Switches:
    """The switches of a model that were switched off, to be put back.

    While gradient_checkpointing is on, transformers ignores ``use_cache``. So both are switched off together.
    """

    def __init__(self) -> None:
        self._off: list[weakref.ref[nn.Module]] = []
        self._configs: list[Any] = []

    def off(self, model: nn.Module) -> bool:
        """Switch off the model's own gradient checkpointing; return whether it was on."""
        found = list(_checkpointing(model))
        for module in found:
            vars(module)["gradient_checkpointing"] = False
            self._off.append(weakref.ref(module))
        configs: dict[int, Any] = {id(config): config for config in map(_config, model.modules())}
        for config in configs.values() if found else ():
            if getattr(config, "use_cache", False) is True:
                config.use_cache = False
                self._configs.append(config)
        return bool(found)

    def put_back(self) -> None:
        """Switch on again what was switched off."""
        for reference in self._off:
            module = reference()
            if module is not None:
                vars(module)["gradient_checkpointing"] = True
        for config in self._configs:
            config.use_cache = True
        self._off.clear()
        self._configs.clear()


@contextmanager
def switched_off(model: nn.Module) -> Iterator[bool]:
    """Keep a model's gradient checkpointing off inside the block. Yields whether it was on."""
    switches = Switches()
    try:
        yield switches.off(model)
    finally:
        switches.put_back()


def recomputes_itself(model: nn.Module) -> bool:
    """Whether a model's own gradient checkpointing is on."""
    return any(True for _ in _checkpointing(model))


def keeps_cache(outputs: object) -> bool:
    """Whether the outputs of a forward hold a cache of keys and values for a next token."""
    past = outputs.get("past_key_values") if isinstance(outputs, Mapping) else getattr(outputs, "past_key_values", None)
    length = getattr(past, "get_seq_length", None)
    return past is not None and (length is None or bool(length()))


def _config(module: nn.Module) -> Any:
    return vars(module).get("config")


def _checkpointing(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        attributes = vars(module)
        if attributes.get("gradient_checkpointing") is True and "_gradient_checkpointing_func" in attributes:
            yield module
