"""Models of other people in small sizes, from transformers' configurations with random weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.zoo import Case

TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 500,
    "max_position_embeddings": 128,
}
SEQUENCES = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 500,
    "max_position_embeddings": 128,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 64,
    "patch_size": 8,
}
GROUPED = {"num_key_value_heads": 2}

OTHERS: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, torch.Tensor]]]] = {
    "albert": ("AlbertForMaskedLM", TEXT | {"embedding_size": 32}, lambda: _text()),
    "bart": ("BartForConditionalGeneration", SEQUENCES | TOKENS, lambda: _text()),
    "big-bird": ("BigBirdForMaskedLM", TEXT, lambda: _text()),
    "bloom": ("BloomForCausalLM", {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 500}, lambda: _text()),
    "deberta": ("DebertaV2ForMaskedLM", TEXT, lambda: _text()),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "vocab_size": 500},
        lambda: _text(),
    ),
    "electra": ("ElectraForMaskedLM", TEXT | {"embedding_size": 32}, lambda: _text()),
    "gemma": ("GemmaForCausalLM", TEXT | GROUPED | {"head_dim": 16}, lambda: _text()),
    "gpt-neox": ("GPTNeoXForCausalLM", TEXT, lambda: _text()),
    "mamba": ("MambaForCausalLM", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 500}, lambda: _text(16)),
    "mistral": ("MistralForCausalLM", TEXT | GROUPED, lambda: _text()),
    "mixtral": ("MixtralForCausalLM", TEXT | GROUPED | {"num_local_experts": 4}, lambda: _text()),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 500},
        lambda: _text(),
    ),
    "pegasus": ("PegasusForConditionalGeneration", SEQUENCES | TOKENS, lambda: _text()),
    "phi": ("PhiForCausalLM", TEXT, lambda: _text()),
    "qwen2": ("Qwen2ForCausalLM", TEXT | GROUPED, lambda: _text()),
    "roformer": ("RoFormerForMaskedLM", TEXT | {"embedding_size": 64}, lambda: _text()),
    "squeezebert": ("SqueezeBertForMaskedLM", TEXT | {"embedding_size": 64}, lambda: _text()),
    "xlnet": (
        "XLNetLMHeadModel",
        {"d_model": 64, "n_layer": 3, "n_head": 4, "d_inner": 128, "vocab_size": 500},
        lambda: _text(),
    ),
    "beit": ("BeitForImageClassification", IMAGES, lambda: _images()),
    "dinov2": ("Dinov2ForImageClassification", IMAGES, lambda: _images()),
    "regnet": (
        "RegNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 2, 2, 1], "groups_width": 8},
        lambda: _images(),
    ),
    "mobilenet": ("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, lambda: _images()),
    "segformer": (
        "SegformerForImageClassification",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "decoder_hidden_size": 32},
        lambda: _images(),
    ),
}


def build(name: str) -> Case:
    """Build a model, the same each time."""
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    kind, options, batch = OTHERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about configurations, not about us
        model = getattr(transformers, kind)
        made = model(model.config_class(**options))
    return Case(made.train(), batch())


def _text(length: int = 64) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 500, (8, length))
    return {"input_ids": ids, "labels": ids}


def _images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(2, (4,))}
