"""Whose fault it is: the plan's, where a call is in a state that replays do not have; the model's own noise else."""

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from autockpt import Plan, Verification, verify
from tests.check.verify.models import BATCH, WIDTH, chain, noise
from tests.toys.told import Told

CALLS = 0
DEPTH: ContextVar[int] = ContextVar("DEPTH", default=0)
GENERATOR = torch.Generator()


def numpy_generator(block: Any, hidden: Tensor) -> Tensor:
    return hidden * float(block.hidden.uniform(0.5, 1.5))


def python_generator(block: Any, hidden: Tensor) -> Tensor:
    return hidden * float(block.hidden.uniform(0.5, 1.5))


def torch_generator(_: Any, hidden: Tensor) -> Tensor:
    return hidden * torch.rand(WIDTH, generator=GENERATOR)


def counter(block: Any, hidden: Tensor) -> Tensor:
    return hidden * float(1 + next(block.hidden))


def module_level(_: Any, hidden: Tensor) -> Tensor:
    global CALLS
    CALLS += 1
    return hidden * CALLS


def list_that_grows(block: Any, hidden: Tensor) -> Tensor:
    block.hidden.append(len(block.hidden))
    return hidden * len(block.hidden)


def array(block: Any, hidden: Tensor) -> Tensor:
    block.hidden += 1
    return hidden * float(block.hidden[0])


def context_variable(_: Any, hidden: Tensor) -> Tensor:
    DEPTH.set(DEPTH.get() + 1)
    return hidden * DEPTH.get()


Twist = Callable[[Any, Tensor], Tensor]
KINDS: dict[str, tuple[Twist, Callable[[], Any]]] = {
    "numpy generator": (numpy_generator, lambda: numpy.random.default_rng(0)),
    "python generator": (python_generator, lambda: random.Random(0)),
    "torch generator": (torch_generator, lambda: None),
    "itertools.count": (counter, itertools.count),
    "module-level counter": (module_level, lambda: None),
    "list that grows": (list_that_grows, list),
    "deque": (list_that_grows, deque),
    "array": (array, lambda: numpy.zeros(1)),
}


def found_for(kind: str, *others: Twist | None) -> Verification:
    twist, state = KINDS[kind]
    model = chain(None, twist, *others)
    model[1].hidden = state()
    return verify(model, BATCH, plan=Plan.of(["0", "1"]))


def test_a_context_variable_is_as_forward_found_it() -> None:
    """A replay runs in a copy of what its forward had, so what it sets is gone with it."""
    model = chain(None, context_variable)
    assert verify(model, BATCH, plan=Plan.of(["0", "1"])).exact


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [(), (noise,)], ids=["alone", "beside noise"])
def test_the_plan_is_to_blame_and_the_call_is_named(kind: str, others: tuple[Twist, ...]) -> None:
    found = found_for(kind, *others)
    assert found.verdict == "different"
    assert [each.name for each in found.wrong_replays] == ["1#0"]
    assert "The plan is to blame: 1#0 cannot be repeated exactly" in " ".join(str(found).split())


@pytest.mark.parametrize("steps", [1, 3])
def test_a_fault_in_a_later_step_only_is_named(steps: int) -> None:
    def late(block: Told, hidden: Tensor) -> Any:
        block.calls[0] += 1
        return hidden * max(block.calls[0], 4)  # forward and replay count, so the replay of step 2 is the fourth

    model = chain(None, lambda block, hidden: late(block, hidden) * 1)
    found = verify(model, BATCH, plan=Plan.of(["1"]), steps=steps)
    if steps == 1:
        assert found.exact
    else:
        assert [(each.name, each.step) for each in found.wrong_replays] == [("1#0", 3)]


@pytest.mark.parametrize(
    "draw",
    [noise, lambda _, hidden: hidden * float.fromhex(f"0x1.{os.urandom(3).hex()}")],
    ids=["adds", "multiplies"],
)
@pytest.mark.parametrize("planned", [["0"], ["1"], [["0", "1"]]], ids=["before", "it", "both"])
def test_a_plain_step_that_does_not_repeat_from_one_visible_state_is_not_the_plans_fault(
    draw: Twist, planned: list[Any]
) -> None:
    found = verify(chain(None, draw, None), BATCH, plan=Plan.of(planned))
    assert (found.verdict, found.wrong_replays) == ("not repeatable", ())


def test_lines_of_a_file_that_nobody_sees_are_not_the_plans_fault(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_text("".join(f"{number}\n" for number in range(1, 1000)))
    with (tmp_path / "numbers").open() as numbers:
        found = verify(chain(None, lambda _, hidden: hidden * int(next(numbers))), BATCH, plan=Plan.of(["1"]))
    assert (found.verdict, found.wrong_replays) == ("not repeatable", ())


def test_a_generator_that_replays_advance_is_the_plans_fault() -> None:
    numbers = (number for number in itertools.count(1))
    found = verify(chain(None, lambda _, hidden: hidden * next(numbers)), BATCH, plan=Plan.of(["1"]))
    assert (found.verdict, [each.name for each in found.wrong_replays]) == ("different", ["1#0"])


def test_what_replays_change_is_as_it_was_when_the_fault_is_found() -> None:
    def growing(numbers: list[int]) -> Twist:
        def times(_: Any, hidden: Tensor) -> Tensor:
            numbers.append(0)
            return hidden * len(numbers)

        return times

    one: list[int] = []
    two: list[int] = []
    found = verify(chain(None, growing(one), growing(two)), BATCH, plan=Plan.of(["1", "2"]))
    assert [each.name for each in found.wrong_replays] == ["2#0", "1#0"]
    assert (one, two) == ([], [])


def test_what_is_saved_otherwise_and_never_read_is_no_fault() -> None:
    class Unread(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, hidden: Tensor) -> Tensor:
            context.save_for_backward(torch.empty(WIDTH).fill_(next(numbers)))
            return hidden.clone()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            return gradient

    numbers = itertools.count()
    model = nn.Sequential(chain(None), chain(lambda _, hidden: Unread.apply(hidden)))  # type: ignore[no-untyped-call]
    assert verify(model, BATCH, plan=Plan.of(["1"])).exact
