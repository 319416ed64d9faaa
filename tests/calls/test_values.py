"""Containers by value: a replay sees what forward was given, not what became of it."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.doors import decode, encode, tensors


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    tensor: Tensor
    name: str = "frozen"


@dataclasses.dataclass(slots=True)
class Slotted:
    tensor: Tensor
    count: int = 3


@dataclasses.dataclass
class Computing:
    tensor: Tensor
    norm: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.norm = self.tensor.norm().item()


class Cache:
    """Like a key-value cache: layers in a list, each an object whose tensors are replaced."""

    def __init__(self) -> None:
        self.layers = [Layer(), Layer()]
        self.first = self.layers[0]


class Layer:
    def __init__(self) -> None:
        self.keys: Tensor | None = torch.ones(1)


class Mapping(dict[str, Any]):
    pass


class Needing(OrderedDict[str, Any]):
    def __init__(self, needed: int) -> None:
        super().__init__()
        self.needed = needed


class Setting(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, (value,))


@dataclasses.dataclass(frozen=True)
class SlottedByHand:
    __slots__ = ("tensor",)
    tensor: Tensor


class Colour(enum.Enum):
    RED = 1


def through(value: Any) -> Any:
    leaves: list[Tensor] = []
    return decode(encode((value,), leaves), leaves)[0]


ONE, TWO = torch.ones(1), torch.ones(2)


@pytest.mark.parametrize(
    "value",
    [
        ONE,
        (ONE, None, 3),
        [ONE, [TWO], ("a", 1.5)],
        {"a": ONE, 2: {"b": TWO}},
        OrderedDict(b=TWO, a=ONE),
        defaultdict(None, a=ONE),
        Pair(ONE, [TWO]),
        torch.ones(2, 3).max(0),
        Frozen(ONE),
        Slotted(TWO),
        Computing(TWO),
        Mapping(a=ONE),
        types.SimpleNamespace(a=ONE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_comes_back_is_equal_and_of_the_same_class(value: Any) -> None:
    back = through(value)
    assert type(back) is type(value)
    assert str(back) == str(value)
    assert list(map(id, tensors(back))) == list(map(id, tensors(value)))
    assert tensors(value)
    assert isinstance(value, (Tensor, tuple)) or back is not value


def test_a_list_that_grows_later_does_not_grow_in_the_replay() -> None:
    given = [ONE]
    leaves: list[Tensor] = []
    templates = encode((given, {"inner": given}), leaves)
    given.append(TWO)
    first, second = decode(templates, leaves)
    assert first == [ONE] and second["inner"] is first
    assert decode(templates, leaves)[0] is not first


def test_an_object_whose_attributes_change_later() -> None:
    cache = Cache()
    leaves: list[Tensor] = []
    templates = encode((cache,), leaves)
    cache.layers[0].keys = None
    cache.layers.append(Layer())
    (back,) = decode(templates, leaves)
    assert len(back.layers) == 2 and back.layers[0].keys is not None
    assert back.first is back.layers[0] is not cache.first


def test_no_method_of_a_class_runs_again() -> None:
    needing, setting = Needing(3), Setting()
    needing["a"] = ONE
    setting.update(a=ONE)
    back = through([needing, setting, SlottedByHand(ONE)])
    assert back[0]["a"] is back[1]["a"] is back[2].tensor is ONE
    assert back[0].needed == 3 and back[0] is not needing


def test_keys_are_kept() -> None:
    key = Layer()
    assert through({key: ONE})[key] is ONE


def test_objects_far_down_in_objects_are_kept() -> None:
    given: Any = None
    for _ in range(2000):
        given = types.SimpleNamespace(inside=given)
    back = through(given)
    assert back is not given and back.inside.inside.inside.inside is given.inside.inside.inside.inside


def test_a_list_that_contains_itself() -> None:
    given: list[Any] = [ONE]
    given.append(given)
    back = through(given)
    assert back is not given and back[1] is back and back[0] is ONE


@pytest.mark.parametrize(
    "value",
    [nn.Linear(1, 1), Colour.RED, object(), len, Cache, torch.Generator(), {1, 2}, range(3), torch.strided],
    ids=lambda value: type(value).__name__,
)
def test_what_is_known_by_identity_stays_the_same_object(value: Any) -> None:
    assert through(value) is value


def test_many_tensors() -> None:
    given = [torch.full((1,), float(number)) for number in range(200)]
    back = through([given])
    assert all(one is other for one, other in zip(given, back[0], strict=True))
