"""Twenty models of other people that nothing else in this project trains: transformers' own, with random weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.zoo import Case

VOCABULARY = 500
TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "use_cache": False}
SPEECH = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 4, 2),
    "conv_kernel": (10, 8, 4),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 32,
    "mask_time_length": 4,
}
TOWER = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
PICTURES = TOWER | {"image_size": 64, "patch_size": 8}
WORDS = TOWER | {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}

Batch = dict[str, torch.Tensor]


def text(length: int = 64, batch: int = 8) -> Batch:
    return {"input_ids": torch.randint(5, VOCABULARY, (batch, length))}


def texts() -> Batch:
    return text() | {"decoder_input_ids": torch.randint(5, VOCABULARY, (8, 64))}


def images(size: int = 64) -> Batch:
    return {"pixel_values": torch.randn(8, 3, size, size)}


def sound() -> Batch:
    return {"input_values": torch.randn(4, 8000)}


OTHERS: dict[str, tuple[str, dict[str, Any], Callable[[], Batch]]] = {
    "modernbert": ("ModernBertForMaskedLM", TEXT | {"local_attention": 32, "cls_token_id": 1, "sep_token_id": 2}, text),
    "convbert": ("ConvBertForMaskedLM", TEXT | {"embedding_size": 64}, text),
    "funnel": (
        "FunnelForMaskedLM",
        {"vocab_size": VOCABULARY, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128, "block_sizes": [2, 2]},
        text,
    ),
    "longformer": ("LongformerForMaskedLM", TEXT | {"attention_window": 16, "max_position_embeddings": 140}, text),
    "prophetnet": (
        "ProphetNetForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "encoder_ffn_dim": 128,
            "num_encoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "decoder_ffn_dim": 128,
            "num_decoder_layers": 2,
            "num_decoder_attention_heads": 4,
            "use_cache": False,
        },
        texts,
    ),
    "gemma2": ("Gemma2ForCausalLM", TEXT | GROUPED | {"head_dim": 16, "sliding_window": 32}, text),
    "olmoe": ("OlmoeForCausalLM", TEXT | GROUPED | {"num_experts": 8, "num_experts_per_tok": 2}, text),
    "switch": (
        "SwitchTransformersForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 3,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "num_experts": 4,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
        texts,
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "vocab_size": VOCABULARY,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 2,
            "chunk_size": 16,
            "use_cache": False,
        },
        lambda: text(32, 4),
    ),
    "recurrentgemma": (
        "RecurrentGemmaForCausalLM",
        TEXT | GROUPED | {"lru_width": 64, "attention_window_size": 32, "head_dim": 16},
        lambda: text(32),
    ),
    "rwkv": (
        "RwkvForCausalLM",
        {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": VOCABULARY, "context_length": 64, "use_cache": False},
        lambda: text(24),
    ),
    "pvt": (
        "PvtV2ForImageClassification",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 2, 2, 1], "num_attention_heads": [1, 2, 3, 4]},
        images,
    ),
    "poolformer": (
        "PoolFormerForImageClassification",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 2, 2, 1], "drop_path_rate": 0.1},
        images,
    ),
    "focalnet": (
        "FocalNetForImageClassification",
        {"image_size": 64, "embed_dim": 32, "depths": [1, 2, 2], "focal_levels": [2, 2, 2], "focal_windows": [3, 3, 3]},
        images,
    ),
    "mobilevit": (
        "MobileViTForImageClassification",
        {"hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 96], "image_size": 64},
        images,
    ),
    "wav2vec2": ("Wav2Vec2ForCTC", SPEECH, sound),
    "ast": (
        "ASTForAudioClassification",
        TOWER | {"max_length": 128, "num_mel_bins": 32},
        lambda: {"input_values": torch.randn(32, 128, 32)},
    ),
    "clip": (
        "CLIPModel",
        {"text_config": WORDS, "vision_config": PICTURES, "projection_dim": 32},
        lambda: text(32) | images(),
    ),
    "vilt": (
        "ViltForMaskedLM",
        PICTURES | {"vocab_size": VOCABULARY, "max_position_embeddings": 64},
        lambda: text(32) | images(),
    ),
    "patchtst": (
        "PatchTSTForPrediction",
        {
            "num_input_channels": 4,
            "context_length": 256,
            "prediction_length": 16,
            "patch_length": 8,
            "patch_stride": 4,
            "d_model": 64,
            "ffn_dim": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 3,
        },
        lambda: {"past_values": torch.randn(8, 256, 4)},
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
