"""Switches of transformers: off while a step is recorded or a budget holds, put back after, and told of."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import autockpt
from tests.doors import one_sequence_a_row
from tests.zoo import gpt2

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers renames what switches it on

TOKENS = torch.randint(100, (4, 64), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "labels": TOKENS}


def model(*, checkpointing: bool = True, **settings: Any) -> Any:
    torch.manual_seed(0)
    made: Any = gpt2(n_layer=4, n_embd=32, vocab_size=100, dropout=0.0, **settings).train()
    if checkpointing:
        made.gradient_checkpointing_enable()
    return made


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records if record.name == "autockpt")


def trained(model: Any, **more: Any) -> list[torch.Tensor]:
    losses = []
    for _ in range(4):
        model.zero_grad()
        loss = model(**BATCH, **more).loss
        loss.backward()
        losses.append(loss.detach())
    return losses


def test_profile_records_without_it_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with_it, without = model(use_cache=True), model(checkpointing=False)
    profile, plain = (autockpt.profile(each, BATCH) for each in (with_it, without))
    assert profile.plain_peak_bytes == plain.plain_peak_bytes
    assert with_it.is_gradient_checkpointing and with_it.config.use_cache is True
    assert said(caplog, "is switched off while a step is recorded") == 1
    assert any("is switched off while a step is recorded" in note for note in profile.notes)
    assert autockpt.profile(with_it, BATCH, mode="fake").plain_peak_bytes == pytest.approx(
        autockpt.profile(without, BATCH, mode="fake").plain_peak_bytes
    )


def test_a_plan_from_inputs_is_held_without_it(caplog: pytest.LogCaptureFixture) -> None:
    plain = trained(model(checkpointing=False))
    held = autockpt.apply(model(use_cache=True), "lowest", inputs=BATCH)
    assert not held.is_gradient_checkpointing and held.config.use_cache is False
    assert autockpt.plan_of(held).segments  # type: ignore[union-attr]
    assert all(map(torch.equal, plain, trained(held)))
    assert said(caplog, "gradient_checkpointing is on") >= 1
    autockpt.apply(held, "lowest", inputs=BATCH)  # replaces the plan, and who held it
    assert not held.is_gradient_checkpointing
    assert autockpt.verify(held, BATCH).exact
    autockpt.profile(held, BATCH)
    assert (
        not held.is_gradient_checkpointing and held.config.use_cache is False
    )  # put back on, the plan would be beside it
    assert autockpt.remove(held).is_gradient_checkpointing
    assert held.config.use_cache is True


def test_the_switch_by_its_newer_name_and_on_every_second_layer() -> None:
    """From transformers 5.23 on: what is set is the same, and only what was on is put back."""
    made = model(checkpointing=False)
    if not hasattr(made, "activation_checkpointing_enable"):
        pytest.skip("this version of transformers has only the older name")
    made.activation_checkpointing_enable(every_n_layers=2)
    on = [block.gradient_checkpointing for block in made.transformer.h]
    assert sorted(on) == [False, False, True, True]
    held = autockpt.apply(made, "lowest", inputs=BATCH)
    assert not any(block.gradient_checkpointing for block in held.transformer.h)
    assert [block.gradient_checkpointing for block in autockpt.remove(held).transformer.h] == on


def test_an_error_puts_it_back() -> None:
    made = model()
    with pytest.raises(autockpt.Infeasible):
        autockpt.apply(made, 1000, inputs=BATCH)
    assert made.is_gradient_checkpointing


def test_beside_a_plan_that_is_given_it_stays_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    made = autockpt.apply(model(), plan=autockpt.Plan.of(["transformer.h.1"]))
    assert made.is_gradient_checkpointing
    assert said(caplog, "recomputed whole beside the plan that is given") == 1


@pytest.mark.parametrize(
    ("settings", "call", "words"),
    [
        ({"use_cache": True}, {}, 1),
        ({"use_cache": False}, {"use_cache": True}, 1),
        ({"use_cache": True}, {"use_cache": False}, 0),
        ({"use_cache": False}, {}, 0),
        ({"use_cache": True, "checkpointing": True}, {}, 0),
    ],
    ids=str,
)
def test_a_cache_is_said_where_one_is_kept(
    settings: dict[str, Any], call: dict[str, Any], words: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`use_cache` in the call goes before the model's own, and checkpointing makes transformers ignore both."""
    held = autockpt.apply(model(**{"checkpointing": False} | settings), "1GB")
    trained(held, **call)
    assert said(caplog, "use_cache is on in training") == words


ROWS, LENGTH = 4, 60
SHORTER = TOKENS[:, :LENGTH].contiguous()
MASK_BYTES = ROWS * LENGTH * LENGTH
"""A mask of all rows, which no other tensor of such a step is as large as."""


def test_a_step_of_fake_tensors_has_no_mask_that_a_real_one_has_not() -> None:
    """Positions of fake tensors do not tell that each row is one sequence: layers had a mask for the other case."""
    batch = {"input_ids": SHORTER, "labels": SHORTER}
    real, fake = (autockpt.profile(model(checkpointing=False), batch, mode=mode) for mode in ("measured", "fake"))
    assert MASK_BYTES not in real.tensors.bytes and MASK_BYTES not in fake.tensors.bytes


def test_a_step_of_fake_tensors_that_is_given_positions_has_their_mask() -> None:
    """They may be those of several sequences in a row, and a real step has a mask then."""
    positions = torch.arange(LENGTH).remainder(LENGTH // 2).expand(ROWS, -1).contiguous()
    batch = {"input_ids": SHORTER, "labels": SHORTER, "position_ids": positions}
    real, fake = (autockpt.profile(model(checkpointing=False), batch, mode=mode) for mode in ("measured", "fake"))
    assert MASK_BYTES in real.tensors.bytes and MASK_BYTES in fake.tensors.bytes


def test_real_positions_are_looked_at_while_fake_tensors_are_recorded() -> None:
    """Another thread may train on rows of several sequences meanwhile."""
    masks: Any = pytest.importorskip("transformers.masking_utils")
    before, packed = masks.find_packed_sequence_indices, torch.arange(8).remainder(4)[None]
    with one_sequence_a_row((), {}):
        assert masks.find_packed_sequence_indices is not before
        assert masks.find_packed_sequence_indices(packed).tolist() == [[0] * 4 + [1] * 4]
    assert masks.find_packed_sequence_indices is before
