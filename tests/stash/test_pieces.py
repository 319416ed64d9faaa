"""A tensor's own elements are stored, whatever its layout, and nothing that lies between them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.doors import bytes_of, is_dense, pageable, span_bytes, stash_pieces


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Slices, permutations and expansions of a tensor."""
    sizes = draw(st.lists(st.integers(1, 7), max_size=4))
    tensor = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    for dimension, size in enumerate(sizes):
        first = draw(st.integers(0, size))
        step = draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * dimension + (slice(first, None, step),)]
        if tensor.shape[dimension] == 1 and draw(st.booleans()):
            tensor = tensor.expand(*tensor.shape[:dimension], 3, *tensor.shape[dimension + 1 :])
    return tensor.permute(draw(st.permutations(range(len(sizes)))))


def round_trip(tensor: Tensor) -> tuple[int, Tensor]:
    """Return how many bytes were stored, and the tensor that came back."""
    row, copier = bytearray(), stash_pieces.Copier(pageable)
    copier.write(stash_pieces.pieces(tensor), lambda piece: row.extend(bytes_of(piece)))
    back = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    place = 0

    def read(piece: Tensor) -> None:
        nonlocal place
        own = bytes_of(piece)
        own[:] = row[place : place + len(own)]
        place += len(own)

    copier.read(stash_pieces.pieces(back), read)
    assert place == len(row) == stash_pieces.stored_bytes(tensor)
    return len(row), back


@pytest.mark.parametrize("longest_bytes", [8, 64, 1 << 20])
def test_any_view_comes_back_from_its_own_elements(longest_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stash_pieces, "PIECE_BYTES", longest_bytes)

    @given(views())
    def check(tensor: Tensor) -> None:
        count, back = round_trip(tensor)
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride()
        assert count == tensor.unique().numel() * tensor.itemsize
        assert all(is_dense(piece) or span_bytes(piece) <= longest_bytes for piece in stash_pieces.pieces(tensor))

    check()


@given(views(), st.sampled_from([1, 8, 64, 1 << 20]), st.sampled_from([8, 24, 1 << 20]))
def test_pieces_of_any_length_have_the_same_elements_in_the_same_order(tensor: Tensor, one: int, other: int) -> None:
    def elements(longest_bytes: int) -> list[int]:
        return [int(each) for piece in stash_pieces.pieces(tensor, longest_bytes) for each in piece.flatten()]

    def row(longest_bytes: int) -> bytes:
        copied = bytearray()
        stash_pieces.Copier(pageable).write(
            stash_pieces.pieces(tensor, longest_bytes), lambda piece: copied.extend(bytes_of(piece))
        )
        return bytes(copied)

    assert row(one) == row(other)
    if stash_pieces.gaps(tensor):
        assert elements(one) == elements(other) == sorted(elements(one))
        assert len(elements(one)) * tensor.itemsize == stash_pieces.stored_bytes(tensor)


@given(views())
def test_only_what_lies_between_elements_is_a_gap(tensor: Tensor) -> None:
    own = tensor.unique().numel() * tensor.itemsize
    assert bool(stash_pieces.gaps(tensor)) == (span_bytes(tensor) > own)
    assert stash_pieces.stored_bytes(tensor) == own


def test_pieces_are_longer_where_much_is_stored() -> None:
    mib = 1 << 20
    for all_mib, longest_mib in {0: 1, 1: 1, 255: 1, 256: 2, 511: 2, 1023: 4, 1024: 8, 1 << 20: 8}.items():
        assert stash_pieces.longest_piece(all_mib * mib) == longest_mib * mib


@pytest.mark.parametrize(
    "shape, stride", [((4, 3), (1, 1)), ((3, 2), (2, 3)), ((5, 4), (2, 1)), ((2, 3, 2), (7, 2, 3))]
)
def test_where_elements_overlap_or_interleave_the_span_is_stored(shape: list[int], stride: list[int]) -> None:
    tensor = torch.arange(40).as_strided(shape, stride, 3)
    count, back = round_trip(tensor)
    assert torch.equal(back, tensor)
    assert count == (int(tensor.max()) - int(tensor.min()) + 1) * tensor.itemsize
