"""A stash that is held serves one step after the other, and closes with the last tensor in it once it is let go."""

from __future__ import annotations

import gc
import weakref

import torch

from tests.doors import HeldStashes, Spill, SpilledTensor

CPU = torch.device("cpu")


def test_what_is_held_is_opened_again_until_it_is_let_go() -> None:
    stashes = HeldStashes()
    first = stashes.open(CPU)
    assert stashes.open(CPU) is not first, "nobody holds it"
    stashes.hold(CPU, first)
    assert stashes.open(CPU) is first
    stashes.let_go()
    assert not stashes.holding
    assert stashes.open(CPU) is not first


def test_what_waits_as_a_stash_is_let_go_stays_until_it_is_freed() -> None:
    stashes, tensor = HeldStashes(), torch.randn(1000)
    stash = stashes.open(CPU)
    stashes.hold(CPU, stash)
    spill = Spill(stash, CPU, ())
    held, gone = spill.take(tensor), weakref.ref(stash)
    del stash
    stashes.let_go()
    spill.close()
    assert spill.take(tensor) is tensor, "it takes nothing any more"
    assert isinstance(held, SpilledTensor)
    assert torch.equal(held.restore(), tensor)
    assert gone() is not None
    del held
    gc.collect()
    assert gone() is None
