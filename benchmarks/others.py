"""Models of other people in small sizes: transformers' own, with random weights.

Those without labels are trained by nothing else in this project.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.zoo import Case

VOCABULARY = 500
TOWER = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHALLOW = TOWER | {"vocab_size": VOCABULARY, "max_position_embeddings": 128}
TEXT = SHALLOW | TOKENS | {"num_hidden_layers": 4}
GROUPED = {"num_key_value_heads": 2, "use_cache": False}
SEQUENCES = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}
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
PICTURES = TOWER | {"image_size": 64, "patch_size": 8}
WORDS = TOWER | {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}

Batch = dict[str, torch.Tensor]
Other = tuple[str, dict[str, Any], Callable[[], Batch]]
"""Of a model its class, what its configuration has, and what makes its batch."""


def text(length: int = 64, batch: int = 8) -> Batch:
    return {"input_ids": torch.randint(5, VOCABULARY, (batch, length))}


def texts() -> Batch:
    return text() | {"decoder_input_ids": torch.randint(5, VOCABULARY, (8, 64))}


def images(batch: int = 8) -> Batch:
    return {"pixel_values": torch.randn(batch, 3, 64, 64)}


def sound() -> Batch:
    return {"input_values": torch.randn(4, 8000)}


def labelled(batch: Batch) -> Batch:
    ids = batch.get("input_ids")
    return batch | {"labels": torch.randint(2, (len(batch["pixel_values"]),)) if ids is None else ids}


LABELLED: dict[str, Other] = {
    "albert": ("AlbertForMaskedLM", SHALLOW | {"embedding_size": 32}, lambda: labelled(text())),
    "bart": ("BartForConditionalGeneration", SEQUENCES | TOKENS, lambda: labelled(text())),
    "big-bird": ("BigBirdForMaskedLM", SHALLOW, lambda: labelled(text())),
    "bloom": (
        "BloomForCausalLM",
        {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": VOCABULARY},
        lambda: labelled(text()),
    ),
    "deberta": ("DebertaV2ForMaskedLM", SHALLOW, lambda: labelled(text())),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "vocab_size": VOCABULARY},
        lambda: labelled(text()),
    ),
    "electra": ("ElectraForMaskedLM", SHALLOW | {"embedding_size": 32}, lambda: labelled(text())),
    "gemma": ("GemmaForCausalLM", SHALLOW | {"num_key_value_heads": 2, "head_dim": 16}, lambda: labelled(text())),
    "gpt-neox": ("GPTNeoXForCausalLM", SHALLOW, lambda: labelled(text())),
    "mamba": (
        "MambaForCausalLM",
        {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": VOCABULARY},
        lambda: labelled(text(16)),
    ),
    "mistral": ("MistralForCausalLM", SHALLOW | {"num_key_value_heads": 2}, lambda: labelled(text())),
    "mixtral": (
        "MixtralForCausalLM",
        SHALLOW | {"num_key_value_heads": 2, "num_local_experts": 4},
        lambda: labelled(text()),
    ),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": VOCABULARY},
        lambda: labelled(text()),
    ),
    "pegasus": ("PegasusForConditionalGeneration", SEQUENCES | TOKENS, lambda: labelled(text())),
    "phi": ("PhiForCausalLM", SHALLOW, lambda: labelled(text())),
    "qwen2": ("Qwen2ForCausalLM", SHALLOW | {"num_key_value_heads": 2}, lambda: labelled(text())),
    "roformer": ("RoFormerForMaskedLM", SHALLOW | {"embedding_size": 64}, lambda: labelled(text())),
    "squeezebert": ("SqueezeBertForMaskedLM", SHALLOW | {"embedding_size": 64}, lambda: labelled(text())),
    "xlnet": (
        "XLNetLMHeadModel",
        {"d_model": 64, "n_layer": 3, "n_head": 4, "d_inner": 128, "vocab_size": VOCABULARY},
        lambda: labelled(text()),
    ),
    "beit": ("BeitForImageClassification", PICTURES, lambda: labelled(images(4))),
    "dinov2": ("Dinov2ForImageClassification", PICTURES, lambda: labelled(images(4))),
    "regnet": (
        "RegNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 2, 2, 1], "groups_width": 8},
        lambda: labelled(images(4)),
    ),
    "mobilenet": ("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, lambda: labelled(images(4))),
    "segformer": (
        "SegformerForImageClassification",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "decoder_hidden_size": 32},
        lambda: labelled(images(4)),
    ),
}

UNLABELLED: dict[str, Other] = {
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

OTHERS = LABELLED | UNLABELLED


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
