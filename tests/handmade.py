"""A profile made by hand, for tests of what reads profiles. Needs no torch.

A chain of equal blocks, each of two calls that save one tensor. The clock is filled the way a recorder would
fill it: forward births and saves, then backward in reverse order.
"""

from __future__ import annotations

from collections.abc import Sequence

from autockpt import Profile
from tests.doors import IDLE_HOST, ArgumentRecord, CallRecord, RefusedPart, SaveTable, Static, TensorTable

__all__ = ["chain_profile", "row_profile"]

MIB = 2**20


class _Step:
    """A step as a recorder would write it down, call by call."""

    def __init__(self) -> None:
        self.tick, self.seconds = 0, 0.0
        self.calls: list[CallRecord] = []
        self.refusals: list[RefusedPart] = []
        self.sizes: list[int] = []
        self.births: list[int] = []
        self.ends: list[int] = []  # natural deaths
        self.saves: list[tuple[int, int, int, float]] = []  # tensor, call, pack, seconds
        self.makers: dict[int, tuple[int, ...]] = {}  # the calls that returned a tensor
        self.hidden = self.allocate(2 * MIB)
        self.root = self.empty()

    def next_tick(self) -> int:
        self.tick += 1
        return self.tick

    def allocate(self, size: int) -> int:
        self.sizes.append(size)
        self.births.append(self.next_tick())
        self.ends.append(0)
        return len(self.sizes) - 1

    def empty(self) -> int:
        """Append a call of which nothing is known yet."""
        call = CallRecord(
            name="",
            occurrence=0,
            parent=-1,
            stop=1,
            class_name="Chain",
            enter=0,
            exit=0,
            enter_seconds=0,
            exit_seconds=0,
        )
        self.calls.append(call)
        return len(self.calls) - 1

    def given(self) -> tuple[ArgumentRecord, ...]:
        return (ArgumentRecord(tensor=self.hidden, sources=self.makers.get(self.hidden, ())),)

    def leaf(self, name: str, class_name: str, size: int, *, refused: str = "") -> None:
        """Append a call that saves one tensor of `size` and its argument, and returns a new tensor."""
        index, given, argument = len(self.calls), self.given(), self.hidden
        enter, began = self.next_tick(), self.seconds
        saved = self.allocate(size)
        for tensor in (argument, saved):
            self.saves.append((tensor, index, self.next_tick(), self.seconds))
        self.hidden = self.allocate(2 * MIB)
        self.ends[saved] = self.next_tick()
        self.ends[argument] = self.tick
        self.seconds += 0.01
        self.calls.append(
            CallRecord(
                name=name,
                occurrence=0,
                parent=0,
                stop=index + 1,
                class_name=class_name,
                enter=enter,
                exit=self.tick,
                enter_seconds=began,
                exit_seconds=self.seconds,
                arguments=given,
                outputs=(self.hidden,),
                signature=f"{class_name}:{size}",
            )
        )
        self.makers[self.hidden] = (index,)
        if refused:
            self.refusals.append(RefusedPart("call", index, refused))

    def profile(self, notes: tuple[str, ...] = ()) -> Profile:
        """End forward, run backward, and return the profile."""
        forward_ticks = self.next_tick()
        self.ends[self.hidden] = forward_ticks
        self.calls[self.root] = _replace(
            self.calls[self.root],
            stop=len(self.calls),
            exit=forward_ticks,
            exit_seconds=self.seconds,
            outputs=(self.hidden,),
        )
        deaths, n_saves = list(self.ends), len(self.saves)
        unpacks, releases = [0] * n_saves, [0] * n_saves
        for i in reversed(range(n_saves)):
            unpacks[i] = self.next_tick()
            gradient = self.allocate(2 * MIB)
            releases[i] = self.next_tick()
            tensor = self.saves[i][0]
            deaths.append(self.next_tick())
            self.ends[gradient] = self.tick
            deaths[tensor] = max(deaths[tensor], releases[i])
        return Profile(
            model="Chain",
            mode="measured",
            device=IDLE_HOST,
            torch_version="2.13.0",
            recorded="2026-01-01T00:00:00",
            plain_seconds=3 * self.seconds,
            static=Static(parameter_bytes=4 * MIB, buffer_bytes=0, input_bytes=MIB),
            ticks=self.next_tick(),
            forward_ticks=forward_ticks,
            calls=tuple(self.calls),
            tensors=TensorTable(
                bytes=tuple(self.sizes), birth=tuple(self.births), natural=tuple(self.ends), death=tuple(deaths)
            ),
            saves=SaveTable(
                tensor=tuple(save[0] for save in self.saves),
                call=tuple(save[1] for save in self.saves),
                pack=tuple(save[2] for save in self.saves),
                unpack=tuple(unpacks),
                release=tuple(releases),
                seconds=tuple(save[3] for save in self.saves),
                function=(-1,) * n_saves,
                op=(-1,) * n_saves,
            ),
            refusals=tuple(self.refusals),
            notes=notes,
        )


def row_profile(sizes: Sequence[int]) -> Profile:
    """Return a profile of a row of calls ``0``, ``1``, ...: each saves one tensor of so many bytes, and its argument.

    A call hands 2 MiB to the next.
    """
    step = _Step()
    for number, size in enumerate(sizes):
        step.leaf(str(number), "Block", size)
    return step.profile()


def chain_profile(n_blocks: int = 4, *, notes: tuple[str, ...] = ()) -> Profile:
    """Return a profile of ``h.0``, ``h.1``, ...: each has an ``attn`` that saves 8 MiB and an ``mlp`` that saves 16.

    The second block's ``attn`` is refused. A block hands 2 MiB to the next.
    """
    step = _Step()
    for i in range(n_blocks):
        enter, began, given = step.next_tick(), step.seconds, step.given()
        block = step.empty()
        refused = "it changes a buffer that nothing can restore" if i == 1 else ""
        step.leaf(f"h.{i}.attn", "Attention", 8 * MIB, refused=refused)
        step.leaf(f"h.{i}.mlp", "MLP", 16 * MIB)
        for child in (block + 1, block + 2):
            step.calls[child] = _replace(step.calls[child], parent=block)
        step.calls[block] = CallRecord(
            name=f"h.{i}",
            occurrence=0,
            parent=0,
            stop=len(step.calls),
            class_name="Block",
            enter=enter,
            exit=step.next_tick(),
            enter_seconds=began,
            exit_seconds=step.seconds,
            arguments=given,
            outputs=(step.hidden,),
            signature="Block:24",
        )
        step.makers[step.hidden] = (block, *step.makers[step.hidden])
    return step.profile(notes)


def _replace(call: CallRecord, **changes: object) -> CallRecord:
    return CallRecord(**{name: getattr(call, name) for name in call.__struct_fields__} | changes)
