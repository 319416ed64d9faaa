"""What a training leaves behind, and how a planned one is held against its plain twin: bit for bit.

What trains, and under what, is the business of those who compare:

    frames/comparing.py         two steps under a plan by hand
    end_to_end/reference.py     a step of a model of the zoo, and its peak
    loops/twin.py               training loops inside a budget
    nets/twin.py                kinds of hidden state
    fuzz/check.py               drawn models under drawn plans

Loads no room of the library: benchmarks use it with versions that have them elsewhere.
"""

from __future__ import annotations

import hashlib
import logging
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "Outcome",
    "counting_replays",
    "differing",
    "digest",
    "generators",
    "gradients",
    "held_by",
    "left_by",
    "listening",
    "same_bits",
    "standing",
    "storage_bytes",
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a training leaves behind and that recomputation must not change, by kind and name."""

    left: Mapping[str, Tensor | None]

    def of(self, kind: str) -> dict[str, Tensor]:
        """What there is of one kind, such as ``"buffer"``, by name."""
        return {name.removeprefix(f"{kind} "): value for name, value in self.left.items() if name.startswith(kind)}  # type: ignore[misc]

    def differences(self, other: Outcome) -> list[str]:
        """Names of what is not bit for bit the same."""
        return differing(self.left, other.left)


def left_by(model: nn.Module) -> dict[str, Tensor | None]:
    """Copy a model's gradients and buffers, and the state of torch's generator."""
    return _copied(standing(model)) | {"generator": torch.get_rng_state()}


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Copy a model's gradients, by the names of its parameters; None where there is none."""
    return _copied({name: each.grad for name, each in model.named_parameters()})


def standing(model: nn.Module) -> dict[str, Tensor | None]:
    """A model's gradients and buffers themselves: no byte is added while a step is recorded or measured."""
    found = {f"gradient {name}": each.grad for name, each in model.named_parameters()}
    return found | {f"buffer {name}": each for name, each in model.named_buffers()}


def _copied(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if each is None else each.detach().clone() for name, each in tensors.items()}


def generators() -> dict[str, str]:
    """The states of the generators that every process has, told in text."""
    numpys = np.random.get_state(legacy=False)
    words = numpys["state"].pop("key")
    return {
        "torch's generator": digest(torch.get_rng_state()),
        "Python's generator": repr(random.getstate()),
        "numpy's generator": repr((numpys, words.tobytes())),  # numpy takes thirty times as long over words
    }


def differing(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Names of what only one has, and of what is not the same in both: tensors bit for bit, all else by `==`."""
    found = [name for name in {**one, **other} if (name in one) != (name in other)]
    return found or [name for name, value in one.items() if not _same(value, other[name])]


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_bits(one, other)
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, their zeros' signs and the bits of what is no number included."""
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return dense.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def digest(value: Tensor) -> str:
    """A digest of a tensor's bits, made without memory that the allocator would count."""
    flat = value.detach().contiguous().reshape(-1)
    bits = hashlib.blake2b(flat.view(torch.uint8).numpy().data, digest_size=16).hexdigest()
    return f"{value.dtype} {tuple(value.shape)} {bits}"


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind `tensors`, each once; of wrappers those of what they wrap."""
    whole: list[Tensor] = []
    for tensor in tensors:
        flatten = getattr(tensor, "__tensor_flatten__", None)
        whole += [tensor] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in whole}.values())


def held_by(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *more: object) -> list[Tensor]:
    """What stands outside of a step: parameters, buffers, gradients, the optimizer's state, and tensors in `more`."""
    state = [] if optimizer is None else [*optimizer.state.values()]
    held = [*model.parameters(), *model.buffers(), *(each.grad for each in model.parameters())]
    return _tensors([held, state, more])


def _tensors(values: object) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    inside = [*values.values()] if isinstance(values, Mapping) else values if isinstance(values, (list, tuple)) else []
    return [each for value in inside for each in _tensors(value)]


@contextmanager
def counting_replays() -> Iterator[list[int]]:
    """Collect the number of calls of every frame that is replayed."""
    from tests.doors import Frame  # not above: see there

    replayed: list[int] = []
    original = Frame.replay

    def replay(frame: Frame) -> None:
        replayed.append(len(frame.calls))
        original(frame)

    with mock.patch.object(Frame, "replay", replay):
        yield replayed


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect what the library warns of, by its logger or by `warnings`."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener, logger = Listener(logging.WARNING), logging.getLogger("autockpt")
    logger.addHandler(listener)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
    finally:
        logger.removeHandler(listener)
        said += [str(each.message) for each in caught if "autockpt" in f"{each.filename} {each.message}"]
