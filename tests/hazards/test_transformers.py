"""What transformers does to the models that it trains."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan
from tests.frames.comparing import assert_same

transformers = pytest.importorskip("transformers")


def llama(**changes: Any) -> Any:
    settings = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings | heads | changes)).train()


def loss(model: nn.Module) -> Tensor:
    ids = torch.arange(16).reshape(2, 8) % 64
    out: Tensor = model(input_ids=ids, labels=ids).loss
    return out


PLANS: list[Any] = [
    [f"model.layers.{i}" for i in range(4)],
    [["model.layers.0", "model.layers.1", "model.layers.2"]],
    [
        "model.layers.0.self_attn",
        "model.layers.1.mlp",
        ["model.layers.2.post_attention_layernorm", "model.layers.2.mlp"],
    ],
]


@pytest.mark.parametrize("plan", PLANS, ids=["layers", "run", "parts"])
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_cache_that_training_fills_is_filled_once(plan: Any, cache: bool, attention: str) -> None:
    """A replay that appended to the cache again would attend to every token twice."""
    assert_same(llama(use_cache=cache, attn_implementation=attention), plan, loss)


def test_the_cache_that_comes_out_is_the_forward_s_own() -> None:
    model = autockpt.apply(llama(use_cache=True), plan=Plan.of(PLANS[1]))
    ids = torch.arange(16).reshape(2, 8) % 64
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    assert out.past_key_values.get_seq_length() == 8


def test_attention_that_fills_a_cache_is_recomputed_like_any_other() -> None:
    """A replay fills a copy of the cache. Attention was refused, and the lowest peak of Llama was 0.63 for 0.44."""
    ids = torch.arange(64).reshape(4, 16) % 64
    batch = {"input_ids": ids, "labels": ids}
    with_cache, without = (autockpt.profile(llama(use_cache=cache), batch) for cache in (True, False))
    assert not autockpt.solve(with_cache, "1GB").refused
    lowest = [autockpt.solve(profile, "lowest").recompute_overhead for profile in (with_cache, without)]
    assert lowest[0] > 0 and lowest[1] > 0
    assert_same(llama(use_cache=True), [["model.layers.0.self_attn"], ["model.layers.1"]], loss)


@pytest.mark.parametrize("plan", [PLANS[0], [["model.embed_tokens", "model.layers.0", "model.layers.1"]]])
def test_adapters_on_frozen_embeddings_whose_outputs_are_made_to_require_gradients(plan: Any) -> None:
    model = llama(use_cache=False, tie_word_embeddings=True)
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj.requires_grad_(True)
    model.enable_input_require_grads()
    assert_same(model, plan, loss)


def test_a_trainer_that_picks_columns_by_signature_finds_them() -> None:
    plain, planned = llama(), autockpt.apply(llama(), plan=Plan.of(PLANS[0]))
    assert inspect.signature(planned.forward) == inspect.signature(plain.forward)
    assert {"input_ids", "attention_mask", "labels"} <= set(inspect.signature(planned.forward).parameters)
    layer, other = plain.model.layers[0], planned.model.layers[0]
    assert inspect.signature(other.forward) == inspect.signature(layer.forward)
