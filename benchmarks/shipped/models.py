"""The models behind the recorded profiles, and batches for them: on the meta device, without values.

They come from transformers with the configuration of the published one, or stand beside this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.shipped.unet import UNet

Batch = dict[str, torch.Tensor]
Build = Callable[[], tuple[torch.nn.Module, Batch]]


def _whole_sequences() -> str:
    """Return the name of an attention that is told of no mask, as no step on sequences of one length needs one.

    transformers looks at the values of positions to know that there is no padding and no packing; here they have none,
    so that it would build masks, repeat grouped heads, and ask for a slower kernel.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("whole_sequences", sdpa_attention_forward)
    return "whole_sequences"


def _model(kind: str, batch: Callable[[], Batch], **config: Any) -> Build:
    """Build a model of transformers, by the name of its class, with what its configuration has of its own."""

    def build() -> tuple[torch.nn.Module, Batch]:
        import transformers

        model = getattr(transformers, kind)
        return model(model.config_class(**config)), batch()

    return build


def _unmasked(kind: str, batch: Callable[[], Batch], **config: Any) -> Build:
    """Build one whose attention is told of no mask, and which keeps no keys and values for later tokens."""
    return lambda: _model(kind, batch, use_cache=False, attn_implementation=_whole_sequences(), **config)()


def _ids(*shape: int) -> torch.Tensor:
    """Tokens without values."""
    return torch.empty(shape, dtype=torch.long)


def _tokens(*shape: int) -> Callable[[], Batch]:
    """A batch of a language model."""
    return lambda: {"input_ids": _ids(*shape), "labels": _ids(*shape)}


def _images(count: int) -> Callable[[], Batch]:
    """A batch of ImageNet."""
    return lambda: {"pixel_values": torch.empty(count, 3, 224, 224), "labels": _ids(count)}


def _sd_unet() -> tuple[torch.nn.Module, Batch]:
    """A denoiser of the size and shape of Stable Diffusion 1's, for images of 512 pixels."""
    latents, text = torch.empty(16, 4, 64, 64), torch.empty(16, 77, 768)
    return UNet(), {"latents": latents, "timesteps": _ids(16), "text": text, "noise": torch.empty_like(latents)}


# fmt: off
MODELS: Mapping[str, Build] = MappingProxyType(
    {
        "bert-large": _model(
            "BertForMaskedLM", _tokens(64, 512), hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
            intermediate_size=4096, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
        ),
        "gpt2-xl": _unmasked(
            "GPT2LMHeadModel", _tokens(8, 1024), n_embd=1600, n_layer=48, n_head=25,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        ),
        "llama-1b": _unmasked(  # Llama 3.2 1B
            "LlamaForCausalLM", _tokens(4, 4096), vocab_size=128_256, hidden_size=2048, intermediate_size=8192,
            num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
            max_position_embeddings=131_072, tie_word_embeddings=True,
        ),
        "llama-8b": _unmasked(  # Llama 3 8B
            "LlamaForCausalLM", _tokens(1, 8192), vocab_size=128_256, hidden_size=4096, intermediate_size=14_336,
            num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
        ),
        "mixtral-small": _unmasked(  # eight experts of which two run: of 1.9 billion parameters a token meets 0.6
            "MixtralForCausalLM", _tokens(8, 2048), hidden_size=1024, intermediate_size=3584, num_hidden_layers=20,
            num_attention_heads=16, num_key_value_heads=4, max_position_embeddings=4096,
            experts_implementation="grouped_mm",
        ),
        "resnet-50": _model("ResNetForImageClassification", _images(256), depths=[3, 4, 6, 3], num_labels=1000),
        "resnet-152": _model("ResNetForImageClassification", _images(256), depths=[3, 8, 36, 3], num_labels=1000),
        "sd-unet": _sd_unet,
        "swin-base": _model(
            "SwinForImageClassification", _images(128), embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32],
            num_labels=1000, attn_implementation="eager",
        ),
        "t5-large": _model(
            "T5ForConditionalGeneration", lambda: {**_tokens(16, 512)(), "labels": _ids(16, 128)}, d_model=1024,
            d_ff=4096, dropout_rate=0.0, num_layers=24, num_heads=16, use_cache=False, decoder_start_token_id=0,
            attn_implementation="eager",
        ),
        "vit-large": _model(  # patches of 16 pixels
            "ViTForImageClassification", _images(128), hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
            intermediate_size=4096, num_labels=1000,
        ),
        "whisper-medium": _unmasked(  # 30 seconds of speech to 448 tokens
            "WhisperForConditionalGeneration",
            lambda: {"input_features": torch.empty(16, 80, 3000), "labels": _ids(16, 448)}, d_model=1024,
            encoder_layers=24, decoder_layers=24, encoder_attention_heads=16, decoder_attention_heads=16,
            encoder_ffn_dim=4096, decoder_ffn_dim=4096,
        ),
    }
)
# fmt: on
"""What builds each model and its batch."""
