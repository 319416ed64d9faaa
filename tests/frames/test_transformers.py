"""Models that people really use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.frames.comparing import assert_same
from tests.toys.told import around

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


def test_gpt2_with_the_cache_that_it_makes_by_default() -> None:
    assert_same(gpt2(use_cache=True), [["transformer.h.0", "transformer.h.1"], "transformer.h.3"], language_loss)


def test_gpt2_with_a_cache_that_is_already_full() -> None:
    def continued(model: nn.Module) -> Tensor:
        ids = torch.arange(16).reshape(2, 8) % 64
        cache = model(input_ids=ids, use_cache=True).past_key_values
        loss: Tensor = model(input_ids=ids, labels=ids, past_key_values=cache).loss
        return loss

    plan = [["transformer.h.0", "transformer.h.1"], "transformer.h.3"]
    assert_same(gpt2(use_cache=True), plan, continued)


def two_steps(model: nn.Module, ids: Tensor) -> Any:
    """Two forwards of one model within one call, the second continuing from the first one's cache."""
    cache = model(input_ids=ids).past_key_values
    return model(input_ids=ids, labels=ids, past_key_values=cache).loss


def test_gpt2_continuing_from_a_cache() -> None:
    plan = [[f"inner.transformer.h.{i}#1" for i in range(2)], [f"inner.transformer.h.{i}#0" for i in range(4)]]
    assert_same(around(gpt2(use_cache=True), two_steps), plan, lambda model: model(torch.arange(16).reshape(2, 8) % 64))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_members_that_transformers_recomputes_itself_run_plain() -> None:
    def with_own() -> nn.Module:
        model = gpt2()
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        return model

    # Its switch sits inside the block's forward: the block may still be a member, what is in the block may not.
    parts = [f"transformer.h.{i}.mlp" for i in range(4)]
    assert_same(with_own(), parts, language_loss, replays=False)
    # In older releases of transformers it sits around the block's forward, where nothing of a block can be a member.
    outside = "transformer.ln_f"
    assert_same(with_own(), [["transformer.h.0", "transformer.h.1"], "transformer.h.3.mlp", outside], language_loss)


@pytest.mark.parametrize("cache", [False, True])
def test_t5_whose_relative_bias_travels_from_block_to_block(cache: bool) -> None:
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2, decoder_start_token_id=0, use_cache=cache
    )
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).train()
    plan = [
        ["encoder.block.0", "encoder.block.1"],
        "encoder.block.2.layer.0",
        ["decoder.block.0", "decoder.block.1", "decoder.block.2"],
    ]
    assert_same(model, plan, language_loss)


def test_llama_with_gradients_of_some_parameters_only() -> None:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name or "norm" in name)
    assert_same(model, [["model.layers.0", "model.layers.1"], "model.layers.2"], language_loss)
