"""What is set around a call: generators, autocast, flags and modes. Taken as it begins, restored for its replay.

A generator's state is kept only if a call draws from it, and if no state that was kept before leads to it:

    generator   s0 ──call 0 draws──▶ s1 ──call 1 draws──▶ s2 ──caller's own code draws──▶ s3 ──call 2 draws──▶
    kept        s0                   -                                                    s3

States are kept as arrays of bytes. These compare in a fraction of the time, and take nothing from torch's allocator.

The states of `host_generators` cost more to read. They are read only in frames that are rehearsed or checked. If a
segment was seen to draw from them there, they are read in all its later frames.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias

import torch

from ..._torch import private
from ..._torch.devices.present import current_stream, go_to, kinds
from ..names import function_name
from ..values import kept_whole
from .context import Context
from .host_generators import HostGenerator

_OPERATORS = (types.BuiltinFunctionType, types.MethodDescriptorType)


Generator: TypeAlias = torch.Generator | HostGenerator
States: TypeAlias = list[tuple[Generator, Any]]
Undo: TypeAlias = list[tuple[Callable[..., Any], tuple[Any, ...]]]

NOTHING: Mapping[Any, Any] = types.MappingProxyType({})

_ONE_AT_A_TIME = threading.RLock()
"""Held while the state of a generator of torch is read or set.

torch makes the tensor of a state while it holds the generator's own lock. Until Python 3.12 that may begin a garbage
collection, which runs Python code and so hands the interpreter to another thread. If that one sets a state, it waits
for the generator's lock and keeps the interpreter: neither goes on. Taken and released within one line, since a thread
may stand at any line, in a debugger say, and the others go on meanwhile.
"""


def take_back(undo: Undo) -> None:
    """Make all calls in `undo`, from the last to the first.

    If an interrupt or an error ends one of them, that call is made again, and the others follow. So each call must be
    safe to repeat.
    """
    try:
        while undo:
            function, arguments = undo[-1]
            function(*arguments)
            undo.pop()
    except BaseException:
        if undo:
            function, arguments = undo.pop()
            try:
                function(*arguments)
            finally:
                take_back(undo)
        raise


class Around:
    """What was set around a forward: autocast, flags that choose kernels, modes, context variables and the stream.

    Attributes:
        casts: whether autocast was on.
        run: runs a forward with the context variables that it had. What it sets in them is gone afterwards.
        stream: the current stream of the accelerator; None if there is no accelerator.
    """

    __slots__ = ("_autocast", "_flags", "_modes", "_operator_modes", "casts", "run", "stream")

    def __init__(self, devices: Collection[torch.device]) -> None:
        self.casts = private.any_autocast_enabled()
        self._autocast = _autocast({device.type for device in devices}) if self.casts else []
        self._flags = private.flags()
        # Mostly none is on.
        self._modes = private.function_modes() if private.any_function_mode() else []
        self._operator_modes = private.of_the_user(private.dispatch_modes()) if private.any_dispatch_mode() else []
        self.run = Context().run  # a device's backward runs in a thread of its own, without these variables
        self.stream = current_stream()

    def put_back(self, undo: Undo) -> None:
        """Restore all of this for a replay, and add to `undo` the calls that undo it."""
        if self.casts or private.any_autocast_enabled():
            # `torch.autocast` would empty a cache of casts on exit, which code around backward may use.
            casts = _autocast({*kinds(), *(kind for kind, *_ in self._autocast)})
            undo.append((_set_autocast, (casts,)))
            _set_autocast(self._autocast or [(kind, False, dtype) for kind, _, dtype in casts])
        flags = private.flags()
        # Forward may change flags for a while, and a replay may end before it changes them back.
        undo.append((private.set_flags, (flags,)))
        if flags != self._flags:
            private.set_flags(self._flags)
        modes = private.function_modes() if private.any_function_mode() else []
        undo.append((private.set_function_modes, (modes,)))
        if modes or self._modes:
            private.set_function_modes(self._modes)
        if self._operator_modes or private.any_dispatch_mode():
            self._put_back_operator_modes(undo)
        stream = current_stream()
        if self.stream is not None and stream != self.stream:
            undo.append((go_to, (stream,)))
            go_to(self.stream)

    def _put_back_operator_modes(self, undo: Undo) -> None:
        modes = private.dispatch_modes()
        users = private.of_the_user(modes)
        if users != self._operator_modes:
            undo.append((private.set_dispatch_modes, (modes,)))
            others = [mode for mode in modes if mode not in users]
            private.set_dispatch_modes([*others, *self._operator_modes])


def _autocast(kinds: Collection[str]) -> list[tuple[str, bool, torch.dtype]]:
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in {"cpu", *kinds}]


def _set_autocast(settings: list[tuple[str, bool, torch.dtype]]) -> None:
    for kind, enabled, dtype in settings:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def generators_of(devices: Collection[torch.device], others: list[Any]) -> list[Generator]:
    """Return the generators of the CPU and of `devices`, and those `given_among` the arguments, each once."""
    if not devices and not others:
        return [torch.default_generator]
    of_devices = (private.default_generator(device) for device in devices)
    found = [torch.default_generator, *(each for each in of_devices if each is not None), *given_among(others)]
    return list(dict.fromkeys(found))


def given_among(others: list[Any]) -> list[torch.Generator]:
    """Return the generators in `others`, the encoded arguments that are `not_simple`."""
    return [value for value in kept_whole(others) if isinstance(value, torch.Generator)]


def states_of(generators: Iterable[Generator], known: Mapping[Generator, Any] = NOTHING) -> States:
    """Return every generator with its present state. `known` are earlier states: the host's may still be in them."""
    found = []
    for generator in generators:  # no comprehension: it is one more function call, and mostly there is one generator
        state = known.get(generator) if known else None
        if state is None or not isinstance(generator, HostGenerator) or not generator.is_at(state):
            state = state_of(generator)
        found.append((generator, state))
    return found


def set_states(states: States) -> None:
    """Set every generator in `states` to the state beside it."""
    for generator, state in states:
        if isinstance(generator, HostGenerator):
            generator.write(state)
        else:
            with _ONE_AT_A_TIME: generator.set_state(torch.frombuffer(state, dtype=torch.uint8))  # fmt: skip  # noqa: E701


def restore_states(states: Mapping[Generator, Any]) -> None:
    """Set every generator to the state beside it; one of a device only if it is in another state.

    Setting a CUDA generator makes cuDNN seed its own random numbers anew, from that generator. The CPU's generator is
    set without a look at its state: to read it takes bytes from torch's allocator at the end of a replay, where the
    peak may be.
    """
    for generator, state in states.items():
        if generator is torch.default_generator:  # as mostly, and as in `set_states`
            with _ONE_AT_A_TIME: generator.set_state(torch.frombuffer(state, dtype=torch.uint8))  # fmt: skip  # noqa: E701
        elif isinstance(generator, HostGenerator) or generator.device.type == "cpu" or state_of(generator) != state:
            set_states([(generator, state)])


def needed(before: States, reached: dict[Generator, Any]) -> States:
    """Return which states a call must keep, now that it has returned.

    Args:
        before: the generators' states when the call began.
        reached: the state that each generator of a replay would have after the earlier calls. Updated for the
            generators that this call moved.

    Returns:
        The states that a replay must set before the call. Usually that is one state for the frame's first call that
        draws, and none for other calls.
    """
    kept: States = []
    for generator, state in before:
        if isinstance(generator, HostGenerator) and generator.is_at(state):
            continue
        after = state_of(generator)
        if after != state:
            if reached.get(generator) != state:
                kept.append((generator, state))
            reached[generator] = after
    return kept


def state_of(generator: Generator) -> Any:
    """Return the present state of a generator, as a value that compares."""
    if isinstance(generator, HostGenerator):
        return generator.read()
    if not private.any_function_mode():
        with _ONE_AT_A_TIME: return bytearray(generator.get_state().numpy())  # fmt: skip  # noqa: E701
    with _ONE_AT_A_TIME: state = generator.get_state()  # fmt: skip  # noqa: E701
    with private.no_torch_functions():  # no function mode is to see it, or to raise
        return bytearray(state.numpy())


def never_draws(function: Callable[..., Any]) -> bool:
    """Whether a torch function is one of torch's own operators, and none of its overloads draws random numbers.

    Asking saves time: to read the states of generators before and after costs as much as a small operator.
    """
    # A function in Python may do anything. The cache would keep the object of a bound method.
    owner = getattr(function, "__self__", None)
    of_object = not isinstance(owner, (type, types.ModuleType, types.NoneType))
    return isinstance(function, _OPERATORS) and not of_object and _operator_never_draws(function)


@functools.lru_cache(maxsize=4096)
def _operator_never_draws(function: Callable[..., Any]) -> bool:
    packet = getattr(torch.ops.aten, function_name(function), None)
    overloads = getattr(packet, "overloads", None)
    if overloads is None:  # no operator has this name, though the namespace may: `__eq__` is a method of any object
        return False
    return not any(torch.Tag.nondeterministic_seeded in getattr(packet, name).tags for name in overloads())
