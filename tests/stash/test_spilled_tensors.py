"""A tensor that waits in a file or on the host comes back as it was."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.doors import Spill, SpilledTensor, open_stash

CPU = torch.device("cpu")


def spill_of(*held: Tensor, roomy: bool = False) -> Spill:
    return Spill(open_stash(CPU, roomy=roomy), CPU, held)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.t(),
    "a part": lambda x: x[1:, ::2],
    "expanded": lambda x: x[:, :1].expand(4, 6),
    "one element": lambda x: x[3, 5],
    "none": lambda x: x[:0],
}


@pytest.mark.parametrize("roomy", [True, False], ids=["memory", "file"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64], ids=str)
def test_a_tensor_comes_back_as_it_was(dtype: torch.dtype, view: str, roomy: bool) -> None:
    tensor = VIEWS[view]((torch.arange(24) % 5).reshape(4, 6).to(dtype))
    if dtype.is_complex:
        tensor = tensor.conj()
    kept, was = tensor.clone(), (tensor.stride(), tensor.is_conj(), tensor.dtype)
    spill = spill_of(roomy=roomy)
    waiting = spill.take(tensor)
    if not isinstance(waiting, SpilledTensor):
        assert not tensor.numel() and waiting is tensor
        return
    storage = StorageWeakRef(tensor.untyped_storage())
    del tensor
    assert storage.expired()
    found = waiting.restore()
    assert torch.equal(found, kept)
    assert (found.stride(), found.is_conj(), found.dtype) == was


def test_what_bytes_do_not_tell_stays_as_it_is() -> None:
    class Named(Tensor):
        pass

    batch, negative = torch.ones(2), torch.ones(2, dtype=torch.complex64).conj().imag
    odd = [torch.eye(2).to_sparse(), torch.ones(2).as_subclass(Named), negative, torch.ones(2, device="meta")]
    spill = spill_of(batch)
    assert all(spill.take(tensor) is tensor for tensor in (*odd, batch, batch[:1]))


@pytest.mark.parametrize("roomy", [True, False], ids=["memory", "file"])
def test_each_tensor_is_written_as_it_is_when_it_is_saved(roomy: bool) -> None:
    """Views made by a kernel count their versions apart: what one writes the other's does not tell (a native GRU)."""
    spill = spill_of(roomy=roomy)
    tensor = torch.zeros(3)
    saves = [spill.take(tensor), spill.take(tensor.add_(1)), spill.take(tensor.data), spill.take(tensor.detach())]
    tensor.data.add_(1)
    saves.append(spill.take(tensor.detach()))
    del tensor
    values = [save.restore()[0].item() for save in saves if isinstance(save, SpilledTensor)]
    assert values == [0.0, 1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("view", [each for each in VIEWS if each != "none"])
def test_a_tensor_that_is_alive_comes_back_as_it_stands_unless_the_write_was_counted(view: str) -> None:
    tensor = torch.arange(24.0).reshape(4, 6)
    kept = tensor.clone()
    waiting, whole = spill_of().take(VIEWS[view](tensor)), spill_of().take(tensor)
    assert isinstance(waiting, SpilledTensor) and isinstance(whole, SpilledTensor)
    found = [(waiting.restore(), waiting.written_late)]
    tensor.data.add_(1)
    found.append((waiting.restore(), waiting.written_late))
    tensor.add_(1)  # the plain step's backward ends in an error
    found.append((waiting.restore(), waiting.written_late))
    assert [late for _, late in found] == [False, True, False]
    assert all(torch.equal(found[each][0], VIEWS[view](kept + each % 2)) for each in range(3))
    tensor.untyped_storage().resize_(0)
    assert torch.equal(whole.restore(), kept)


def test_a_storage_that_numpy_was_given_stays_until_the_last_write_to_it() -> None:
    spill, tensor = spill_of(), torch.zeros(3)
    waiting = spill.take(tensor)
    assert isinstance(waiting, SpilledTensor)
    storage = StorageWeakRef(tensor.untyped_storage())
    array = spill.late.around("numpy", (tensor,), tensor.numpy)()
    del tensor
    array += 1
    spill.take(torch.ones(2))
    assert not storage.expired()
    array += 1
    del array
    spill.take(torch.ones(2))
    assert storage.expired() and waiting.written_late
    assert waiting.restore().tolist() == [2.0, 2.0, 2.0]


def test_bytes_between_a_tensors_elements_are_not_compared() -> None:
    tensor = torch.arange(24.0).reshape(4, 6)
    waiting = spill_of().take(tensor[:, :1].expand(4, 6))
    assert isinstance(waiting, SpilledTensor)
    tensor.data[:, 1:].add_(1)
    waiting.restore()
    assert not waiting.written_late


def test_in_memory_one_third_of_a_storage_takes_no_more_than_that() -> None:
    """Queries beside keys and values; from their first element to their last it is nearly all of the storage."""
    queries = torch.randn(64, 64, 96).chunk(3, -1)[0]

    tracemalloc.start()
    try:
        spill = spill_of(roomy=True)
        waiting = spill.take(queries)
        assert isinstance(waiting, SpilledTensor)
        assert queries.nbytes <= tracemalloc.get_traced_memory()[1] < 2 * queries.nbytes
    finally:
        tracemalloc.stop()
    assert torch.equal(waiting.restore(), queries)
