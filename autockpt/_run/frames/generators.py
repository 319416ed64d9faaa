"""Random generators: a state is kept only where a call draws and nothing kept before leads to it.

    generator   s0 ──call 0 draws──▶ s1 ──glue──▶ s1 ──call 1 draws──▶ s2 ──glue draws──▶ s3 ──call 2 draws──▶
    kept        s0                                 -                                      s3

States are kept as bytes objects: they compare in a fraction of the time, and take nothing from torch's allocator.

Python's `random` and numpy's global generator are left alone: reading their states costs 10 and 50 microseconds. A
member that draws from them is beyond what a replay can repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import torch

from ... import _torch_private
from ..._calls.values import kept_whole

States: TypeAlias = list[tuple[torch.Generator, bytes]]


def generators_of(devices: Collection[torch.device], others: list[Any]) -> list[torch.Generator]:
    """Return the generators of the CPU and of `devices`, and those `given_among` the arguments, each once."""
    if not devices and not others:
        return [torch.default_generator]
    of_devices = (_torch_private.default_generator(device) for device in devices)
    found = [torch.default_generator, *(each for each in of_devices if each is not None), *given_among(others)]
    return list(dict.fromkeys(found))


def given_among(others: list[Any]) -> list[torch.Generator]:
    """Return the generators in `others`, the encoded arguments that are `not_simple`."""
    return [value for value in kept_whole(others) if isinstance(value, torch.Generator)]


def states_of(generators: Iterable[torch.Generator]) -> States:
    """Return every generator with its present state."""
    return [(generator, _state(generator)) for generator in generators]


def set_states(states: States) -> None:
    """Set every generator in `states` to the state beside it."""
    for generator, state in states:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def restore_states(states: Mapping[torch.Generator, bytes]) -> None:
    """Set every generator to the state beside it, on CUDA only where it is in another.

    Who sets a CUDA generator makes cuDNN seed random numbers of its own anew, out of that generator. To read that of
    the CPU takes bytes from torch's allocator, at the end of a replay, where the peak may stand.
    """
    for generator, state in states.items():
        if generator.device.type == "cpu" or _state(generator) != state:
            set_states([(generator, state)])


class GeneratorTrack:
    """Where a replay's generators would stand after the calls so far. Lives as long as the frame is open."""

    __slots__ = ("_reached",)

    def __init__(self) -> None:
        self._reached: States = []

    def needed(self, before: States) -> States:
        """Return which states of `before` a call must keep, now that it has returned.

        Args:
            before: the generators' states when the call began.

        Returns:
            The states that a replay must set before the call; usually one for the frame's first call that
            draws, and none for any other.
        """
        kept: States = []
        for generator, state in before:
            after = _state(generator)
            if after == state:
                continue
            if (generator, state) not in self._reached:
                kept.append((generator, state))
            self._reached = [entry for entry in self._reached if entry[0] is not generator]
            self._reached.append((generator, after))
        return kept


def _state(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    with _torch_private.no_torch_functions():  # no function mode is to see it, or to raise
        return state.numpy().tobytes()
