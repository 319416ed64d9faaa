"""Switches of transformers' models that work against a plan: gradient_checkpointing and use_cache; masks of fakes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..._torch import private

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


@contextmanager
def one_sequence_a_row(args: object, kwargs: Mapping[str, object]) -> Iterator[None]:
    """Have transformers take each row of fake tensors for one sequence inside the block, as a real step's mostly is.

    It looks at positions for rows that hold several, and fake ones do not tell: then every layer had a mask that a real
    step has not, and other operators for it. Batches that give positions of their own keep that mask. Real tensors, as
    those of another thread, are looked at as ever.

    Args:
        args: positional arguments of the model.
        kwargs: its keyword arguments.
    """
    module: Any = sys.modules.get("transformers.masking_utils")
    looks: Callable[[torch.Tensor], torch.Tensor | None] | None = getattr(module, _LOOKS, None)
    batches = [kwargs, *(each for each in (args if isinstance(args, tuple) else ()) if isinstance(each, Mapping))]
    if looks is None or any("position_ids" in each for each in batches):
        yield
        return

    def find(position_ids: torch.Tensor) -> torch.Tensor | None:
        found = looks(position_ids)
        return None if found is not None and private.fake_mode_of(found) is not None else found

    setattr(module, _LOOKS, find)
    try:
        yield
    finally:
        setattr(module, _LOOKS, looks)


_LOOKS = "find_packed_sequence_indices"
"""The function of transformers that says of each token in which sequence of its row it is; None for all in one."""


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
