"""Models that people really use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frames.comparing import assert_same

transformers = pytest.importorskip("transformers")


def gpt2(**changes: Any) -> nn.Module:
    settings = {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    config = transformers.GPT2Config(**settings | {"bos_token_id": 0, "eos_token_id": 0, "use_cache": False} | changes)
    torch.manual_seed(0)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model.train()


def language_loss(model: nn.Module) -> Tensor:
    ids = torch.arange(16).reshape(2, 8) % 64
    loss: Tensor = model(input_ids=ids, labels=ids).loss
    return loss


@pytest.mark.parametrize(
    "plan",
    [
        [f"transformer.h.{i}" for i in range(4)],
        [["transformer.h.0", "transformer.h.1", "transformer.h.2"]],
        [f"transformer.h.{i}.{part}" for i in range(4) for part in ("attn", "mlp")],
        [["transformer.h.1.ln_2", "transformer.h.1.mlp"], "transformer.h.3.mlp.act"],
    ],
    ids=["blocks", "run of blocks", "attention and mlp", "parts"],
)
def test_gpt2_with_dropout(plan: Any) -> None:
    assert_same(gpt2(), plan, language_loss)
