"""A profile made by hand, for tests of what reads profiles. Needs no torch.

A chain of equal blocks, each of two calls that save one tensor. The clock is filled the way a recorder would
fill it: forward births and saves, then backward in reverse order.
"""

from __future__ import annotations

from autockpt import Profile
from tests.doors import IDLE_HOST, ArgumentRecord, CallRecord, RefusedPart, SaveTable, Static, TensorTable

__all__ = ["chain_profile"]

MIB = 2**20


def chain_profile(n_blocks: int = 4, *, notes: tuple[str, ...] = ()) -> Profile:
    """Return a profile of ``h.0``, ``h.1``, ...: each has an ``attn`` that saves 8 MiB and an ``mlp`` that saves 16.

    The second block's ``attn`` is refused. A block hands 2 MiB to the next.
    """
    tick = 0
    seconds = 0.0
    calls: list[CallRecord] = []
    refusals: list[RefusedPart] = []
    sizes: list[int] = []
    births: list[int] = []
    ends: list[int] = []  # natural deaths
    saves: list[tuple[int, int, int, float]] = []  # tensor, call, pack, seconds
    makers: dict[int, tuple[int, ...]] = {}  # the calls that returned a tensor

    def next_tick() -> int:
        nonlocal tick
        tick += 1
        return tick

    def allocate(size: int) -> int:
        sizes.append(size)
        births.append(next_tick())
        ends.append(0)
        return len(sizes) - 1

    def leaf(name: str, class_name: str, size: int, argument: int, *, refused: str = "") -> int:
        """Append a call that saves one tensor of `size` and its argument, and returns a new tensor."""
        nonlocal seconds
        index = len(calls)
        enter, began = next_tick(), seconds
        saved = allocate(size)
        for tensor in (argument, saved):
            saves.append((tensor, index, next_tick(), seconds))
        output = allocate(2 * MIB)
        ends[saved] = next_tick()
        ends[argument] = tick
        seconds += 0.01
        calls.append(
            CallRecord(
                name=name,
                occurrence=0,
                parent=0,
                stop=index + 1,
                class_name=class_name,
                enter=enter,
                exit=tick,
                enter_seconds=began,
                exit_seconds=seconds,
                arguments=(ArgumentRecord(tensor=argument, sources=makers.get(argument, ())),),
                outputs=(output,),
                signature=f"{class_name}:{size}",
            )
        )
        makers[output] = (index,)
        if refused:
            refusals.append(RefusedPart("call", index, refused))
        return output

    batch = allocate(2 * MIB)
    placeholder = CallRecord(
        name="", occurrence=0, parent=-1, stop=1, class_name="Chain", enter=0, exit=0, enter_seconds=0, exit_seconds=0
    )
    calls.append(placeholder)
    hidden = batch
    for i in range(n_blocks):
        block, enter, began, argument = len(calls), next_tick(), seconds, hidden
        calls.append(placeholder)
        refused = "it changes a buffer that nothing can restore" if i == 1 else ""
        hidden = leaf(f"h.{i}.attn", "Attention", 8 * MIB, hidden, refused=refused)
        hidden = leaf(f"h.{i}.mlp", "MLP", 16 * MIB, hidden)
        for child in (block + 1, block + 2):
            calls[child] = _replace(calls[child], parent=block)
        calls[block] = CallRecord(
            name=f"h.{i}",
            occurrence=0,
            parent=0,
            stop=len(calls),
            class_name="Block",
            enter=enter,
            exit=next_tick(),
            enter_seconds=began,
            exit_seconds=seconds,
            arguments=(ArgumentRecord(tensor=argument, sources=makers.get(argument, ())),),
            outputs=(hidden,),
            signature="Block:24",
        )
        makers[hidden] = (block, *makers[hidden])
    forward_ticks = next_tick()
    ends[hidden] = forward_ticks
    calls[0] = _replace(placeholder, stop=len(calls), exit=forward_ticks, exit_seconds=seconds, outputs=(hidden,))

    deaths = list(ends)
    unpacks = [0] * len(saves)
    releases = [0] * len(saves)
    for i in reversed(range(len(saves))):
        unpacks[i] = next_tick()
        gradient = allocate(2 * MIB)
        releases[i] = next_tick()
        tensor = saves[i][0]
        deaths.append(next_tick())
        ends[gradient] = tick
        deaths[tensor] = max(deaths[tensor], releases[i])
    tick = next_tick()
    return Profile(
        model="Chain",
        mode="measured",
        device=IDLE_HOST,
        torch_version="2.13.0",
        recorded="2026-01-01T00:00:00",
        plain_seconds=3 * seconds,
        static=Static(parameter_bytes=4 * MIB, buffer_bytes=0, input_bytes=MIB),
        ticks=tick,
        forward_ticks=forward_ticks,
        calls=tuple(calls),
        tensors=TensorTable(bytes=tuple(sizes), birth=tuple(births), natural=tuple(ends), death=tuple(deaths)),
        saves=SaveTable(
            tensor=tuple(save[0] for save in saves),
            call=tuple(save[1] for save in saves),
            pack=tuple(save[2] for save in saves),
            unpack=tuple(unpacks),
            release=tuple(releases),
            seconds=tuple(save[3] for save in saves),
            function=(-1,) * len(saves),
            op=(-1,) * len(saves),
        ),
        refusals=tuple(refusals),
        notes=notes,
    )


def _replace(call: CallRecord, **changes: object) -> CallRecord:
    return CallRecord(**{name: getattr(call, name) for name in call.__struct_fields__} | changes)
