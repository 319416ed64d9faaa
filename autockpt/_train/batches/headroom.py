"""Predicts steps on larger batches than were recorded: tensors grow as they do between two fake recordings.

fake, as large as recorded     64   128   64      ──▶  64 grows to 80, 128 to 160
fake, larger                   80   160   80
recorded                       64    96  128  64  ──▶  80  120  160  80         96 is in neither: by the largest ratio

Fake tensors do not run through a model that looks at their values (random depth, masks that are drawn). Then tensors
grow as they did from one recorded step to another, and where only one was recorded, as the square of the sizes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any

import msgspec
import torch

from ..._calls.values import decode, encode
from ..._calls.values import tensors as tensors_of
from ..._data.profile import Profile
from ..._record.fake import profile_fake
from ..._record.step import Arguments, Loss, training_step
from ..._torch.devices import device_of, rounded
from ..._torch.private import quiet_fake_tensors
from ...solvers.errors import BudgetError
from .batch import Forward, Kind, by_name

_log = logging.getLogger("autockpt")

HEADROOM = 1.25
"""If a size was seen to vary, plans are made for a size that is larger by this factor."""

MOST_POWER = 2
"""Attention scores grow with the square of the sequence length. Nothing is taken to grow faster."""

LEAST_GROWTH = 1.05
"""How many times as large the sizes of another recorded step have to be, so that it shows how tensors grow."""

STAYS = "the weights"
"""The origin of gradients of parameters, and of what optimizers allocate: these do not grow with the batch."""

Shapes = tuple[tuple[int, ...], ...]


def headroom(shapes: Shapes, others: Iterable[Shapes]) -> Shapes:
    """Return shapes with headroom in each dimension in which some other shapes differ from them."""
    grown = [list(shape) for shape in shapes]
    for other in others:
        for own, mine, theirs in zip(grown, shapes, other, strict=True):
            for dimension, (size, another) in enumerate(zip(mine, theirs, strict=True)):
                if size != another:
                    own[dimension] = math.ceil(size * HEADROOM)
    return tuple(map(tuple, grown))


def roomy(kind: Kind, kinds: Iterable[Kind]) -> Kind:
    """Return a kind with headroom in the sizes that vary between recorded kinds. With several forwards it stays."""
    batch, *others = kind.batches
    if others:
        return kind
    firsts = [each.batches[0] for each in kinds]
    shapes = headroom(batch.shapes, [each.shapes for each in firsts if each.kind == batch.kind])
    return dataclasses.replace(kind, batches=(dataclasses.replace(batch, shapes=shapes),))


def grown(
    begins: Forward,
    profile: Profile,
    shapes: Shapes,
    larger: Shapes,
    loss: Loss | None,
    seen: Iterable[tuple[Shapes, Profile]] = (),
) -> Profile:
    """Predict a step on a larger batch.

    Args:
        begins: a forward on any batch of the same kind.
        profile: the profile of a recorded step.
        shapes: shapes of the tensors of the recorded batch.
        larger: shapes of the tensors of the larger batch.
        loss: maps outputs to a scalar; None if it is not known.
        seen: shapes and profiles of other recorded steps of its kind, for where fake tensors do not run.

    Returns:
        The predicted profile. It has the calls, refusals and seconds of the recorded step.

    Heuristic; O(two fake recordings).
    """
    pairs = _fake_pairs(begins, shapes, larger, loss)
    by_origin: Mapping[str, float] = {} if pairs else _seen_ratios(profile, shapes, larger, seen)
    most = max((new / old for _, old, new in pairs), default=_largest(shapes, larger) ** MOST_POWER)
    device = device_of(begins.device)
    found: dict[tuple[str, int], int] = {}
    for origin, old, new in pairs:
        place = origin, rounded(device, old)
        found[place] = max(found.get(place, 0), rounded(device, new))
    weights = {rounded(device, parameter.nbytes) for parameter in begins.model.parameters()}

    def size_of(origin: str, size: int) -> int:
        if origin == STAYS or ((origin, size) not in found and size in weights):
            return size
        return found.get((origin, size), rounded(device, math.ceil(size * by_origin.get(origin, most))))

    sizes = tuple(starmap(size_of, _sizes(profile)))
    tensors = profile.tensors
    before, after = (_batch_bytes(begins, each) for each in (shapes, larger))
    static = msgspec.structs.replace(profile.static, input_bytes=profile.static.input_bytes + max(after - before, 0))
    by = "by fake recordings of both" if pairs else "by how recorded steps grew" if by_origin else "by a guess"
    note = f"foretold for larger batches ({larger} for {shapes}) {by}"
    return msgspec.structs.replace(
        profile,
        tensors=msgspec.structs.replace(tensors, bytes=sizes),
        static=static,
        notes=(*profile.notes, note),
    )


def _fake_pairs(begins: Forward, shapes: Shapes, larger: Shapes, loss: Loss | None) -> list[tuple[str, int, int]]:
    """Return for each tensor of two fake recordings its origin, and its bytes in the first and in the second.

    Return nothing if fake tensors do not run through the model, or if the recordings do not have the same tensors.
    """
    try:
        with _bare(begins), quiet_fake_tensors():
            small, large = (_sizes(_fake(begins, each, loss)) for each in (shapes, larger))
    except Exception as error:  # whatever a model does with fake tensors
        _log.info("larger batches are guessed, since fake tensors do not run through the model: %s", error)
        return []
    if [origin for origin, _ in small] != [origin for origin, _ in large]:
        return []
    return [(origin, old, new) for (origin, old), (_, new) in zip(small, large, strict=True)]


def _largest(shapes: Shapes, larger: Shapes) -> float:
    """Return the largest ratio of a size to the same one of smaller shapes."""
    pairs = (pair for each, other in zip(shapes, larger, strict=True) for pair in zip(each, other, strict=True))
    return max((new / max(old, 1) for old, new in pairs), default=1.0)


def _seen_ratios(
    profile: Profile, shapes: Shapes, larger: Shapes, seen: Iterable[tuple[Shapes, Profile]]
) -> dict[str, float]:
    """Return by origin how many times as large its tensors will be, from how they grew between two recorded steps.

    A tensor that grew by b while each size of the batch grew by s or more is taken to grow with the power log b / log s
    of whichever size grows most. So it is foretold too large where several sizes grow, and never too small.
    """
    places = [(number, place) for number, each in enumerate(shapes) for place in range(len(each))]
    grows = [(number, place) for number, place in places if larger[number][place] > shapes[number][place]]
    best, steps = LEAST_GROWTH, (profile, profile)
    for others, other in seen if grows else ():
        ratios = [max(others[number][place], 1) / max(shapes[number][place], 1) for number, place in grows]
        for least, pair in ((min(ratios), (profile, other)), (1 / max(ratios), (other, profile))):
            if least > best:
                best, steps = least, pair
    if steps[0] is steps[1]:
        return {}
    small, large = map(_by_origin, steps)
    ratio, found = _largest(shapes, larger), {}
    for origin in small.keys() & large.keys():
        if len(small[origin]) == len(large[origin]):
            growth = max(new / old for old, new in zip(small[origin], large[origin], strict=True))
            found[origin] = ratio ** min(math.log(max(growth, 1.0)) / math.log(best), MOST_POWER)
    return found


def _by_origin(profile: Profile) -> dict[str, list[int]]:
    """Return the different sizes of tensors by origin, sorted: as many in each step, however many layers it runs."""
    found: dict[str, set[int]] = {}
    for origin, size in _sizes(profile):
        found.setdefault(origin, set()).add(max(size, 1))
    return {origin: sorted(sizes) for origin, sizes in found.items()}


def larger_kind(begins: Forward, kind: Kind, plan_for: Mapping[str, tuple[int, ...]], *, numbers: bool) -> Kind:
    """Return a kind with one forward that also covers the shapes that were asked for, by name of the argument."""
    (batch,) = kind.batches
    told = begins._replace(arguments=enlarged(begins, plan_for)).batch(numbers=numbers).shapes
    shapes = tuple(tuple(map(max, *pair)) for pair in zip(batch.shapes, told, strict=True))
    return dataclasses.replace(kind, batches=(dataclasses.replace(batch, shapes=shapes),))


def _batch_bytes(begins: Forward, shapes: Shapes) -> int:
    """Bytes of a batch of these shapes."""
    batch = tensors_of(begins.arguments)
    return sum(math.prod(shape) * each.itemsize for each, shape in zip(batch, shapes, strict=False))


def resized(arguments: Any, shapes: Sequence[tuple[int, ...]]) -> Any:
    """Return arguments with their tensors resized to these shapes, by repeating or cutting off values.

    So values stay valid for the model, such as indices of a vocabulary.
    """
    leaves: list[torch.Tensor] = []
    templates = encode((arguments,), leaves)
    new = [_repeated(leaf, shape) for leaf, shape in zip(leaves, shapes, strict=False)]
    return decode(templates, new)[0]


def enlarged(begins: Forward, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with their tensors repeated until they are as large as was asked for.

    Args:
        begins: a forward with the arguments.
        shapes: the shapes asked for, by name of the argument.

    Returns:
        Arguments by position and by keyword.

    Raises:
        BudgetError: no argument of that name is a tensor, or it has another number of dimensions.
    """
    args, kwargs = begins.arguments
    places = by_name(begins.own, tuple(range(len(args))), {name: name for name in kwargs})
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    for name, shape in shapes.items():
        tensor = given[places[name]] if name in places else None
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != len(shape):
            found = f"a tensor of shape {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else "none"
            raise BudgetError(
                f"plan_for asks for {name!r} in shape {shape}, and the batch has {found} there; it has the arguments "
                f"{', '.join(places)}"
            )
        given[places[name]] = _repeated(tensor, tuple(map(max, shape, tensor.shape)))
    return tuple(given[position] for position in range(len(args))), {name: given[name] for name in kwargs}


@contextlib.contextmanager
def _bare(begins: Forward) -> Iterator[None]:
    """Put the model's own forward back inside the block: what was patched over it has seen the arguments already."""
    attributes = begins.root.__dict__
    over, attributes["forward"] = attributes["forward"], begins.own
    try:
        yield
    finally:
        attributes["forward"] = over


def _fake(begins: Forward, shapes: Shapes, loss: Loss | None) -> Profile:
    """Record a fake step, without the model's hooks: they have changed the arguments already."""
    arguments = Arguments(*resized(begins.arguments, shapes))
    return profile_fake(training_step(begins.root, arguments, loss, hooks=False))


def _sizes(profile: Profile) -> list[tuple[str, int]]:
    """The origin and bytes of each tensor of a step. Equal sizes may have different origins: batch and weights."""
    tensors, ops = profile.tensors, profile.ops
    made = {tensor: name for name, makes in zip(ops.name, ops.makes, strict=True) for tensor in makes}
    over = max(profile.saves.release, default=profile.ticks)
    found = []
    for tensor, (size, birth, death) in enumerate(zip(tensors.bytes, tensors.birth, tensors.death, strict=True)):
        is_gradient = birth >= profile.forward_ticks and death >= profile.ticks
        origin = made.get(tensor, "forward" if birth < profile.forward_ticks else "backward")
        found.append((STAYS if is_gradient or birth > over else origin, size))
    return found


def _repeated(tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Resize a tensor by repeating or cutting off its values, so that they stay valid for the model."""
    for dimension, size in enumerate(shape):
        index = torch.arange(size, device=tensor.device) % tensor.shape[dimension]
        tensor = tensor.detach().index_select(dimension, index).requires_grad_(tensor.requires_grad)
    return tensor
