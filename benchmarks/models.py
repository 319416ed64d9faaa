"""The twelve models that benchmarks compare on, in a size for seconds and, for transformers, for minutes or a GPU.

Real architectures with random weights. In the small size a block takes a few milliseconds on one core, so that what
the host does between operators counts; in the large one 50 ms and more, so that it does not. The one for a GPU has
blocks of published models, fewer of them, in bfloat16.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from tests.zoo import ZOO, Case, DenseNet, UNet, gpt2, tokens

__all__ = ["SIZES", "SMALL", "TEXT", "TINY", "TRANSFORMERS", "VARIANTS", "Size", "build"]

Built = tuple[nn.Module, dict[str, Any]]
Size = Literal["small", "large", "gpu"]

TRANSFORMERS = ("gpt2", "bert", "llama", "vit", "t5", "whisper")


def build(name: str, size: Size = "small") -> Case:
    """Build a model, the same each time."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about configurations, not about us
        model, kwargs = (SIZES[size] | (VARIANTS if size == "small" else {}))[name]()
    if size == "gpu":
        model = model.to("cuda", torch.bfloat16)
        kwargs = {key: _on_gpu(value) for key, value in kwargs.items()}
    return Case(model.train(), kwargs)


def _on_gpu(value: torch.Tensor) -> torch.Tensor:
    return value.to("cuda", torch.bfloat16 if value.is_floating_point() else value.dtype)


def _gpt2(width: int, batch: int, length: int, layers: int, dropout: float = 0.0, heads: int = 4) -> Built:
    model = gpt2(n_layer=layers, n_embd=width, vocab_size=1000, n_positions=length, dropout=dropout, n_head=heads)
    return model, tokens(1000, batch, length)


def _bert(width: int, batch: int, length: int, layers: int, heads: int = 4) -> Built:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=1000,
        max_position_embeddings=length,
    )
    return BertForMaskedLM(config), tokens(1000, batch, length)


def _llama(
    width: int, batch: int, length: int, layers: int, heads: int = 4, key_heads: int = 2, inner: int | None = None
) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=inner or width * 8 // 3,
        vocab_size=1000,
        max_position_embeddings=length,
        use_cache=False,
    )
    return LlamaForCausalLM(config), tokens(1000, batch, length)


def _mixtral(width: int, batch: int, length: int, layers: int, heads: int = 4, experts: int = 4) -> Built:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        intermediate_size=2 * width,
        num_local_experts=experts,
        vocab_size=1000,
        max_position_embeddings=length,
        use_cache=False,
    )
    model = MixtralForCausalLM(config)
    model.set_experts_implementation("eager")  # grouped products need kernels of a GPU's
    return model, tokens(1000, batch, length)


def _resnet(batch: int, size: int) -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 64], depths=[2, 2, 2, 1])
    return ResNetForImageClassification(config), _images(batch, size)


def _vit(width: int, batch: int, size: int, layers: int, heads: int = 4) -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=size,
        patch_size=16,
    )
    return ViTForImageClassification(config), _images(batch, size)


def _t5(
    width: int, batch: int, length: int, layers: int, dropout: float = 0.1, heads: int = 4, inner: int | None = None
) -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=width,
        d_kv=width // heads,
        d_ff=inner or width * 8 // 3,
        num_layers=layers,
        num_heads=heads,
        vocab_size=1000,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
        dropout_rate=dropout,
    )
    return T5ForConditionalGeneration(config), tokens(1000, batch, length)


def _whisper(width: int, batch: int, frames: int, layers: int, heads: int = 4) -> Built:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        vocab_size=1000,
        num_mel_bins=40,
        max_source_positions=frames // 2,
        max_target_positions=64,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        apply_spec_augment=False,
    )
    model = WhisperForConditionalGeneration(config)
    return model, {"input_features": torch.randn(batch, 40, frames), "labels": torch.randint(1000, (batch, 64))}


def _swin() -> Built:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=128,
        patch_size=4,
        window_size=4,
        embed_dim=32,
        depths=[2, 2, 6, 2],
        num_heads=[2, 4, 8, 16],
        drop_path_rate=0.1,
    )
    return SwinForImageClassification(config), _images(4, 128)


def _convnext() -> Built:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[24, 48, 96, 192], depths=[3, 3, 9, 3])
    return ConvNextForImageClassification(config), _images(8, 96)


def _images(batch: int, size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(2, (batch,))}


SMALL: dict[str, Callable[[], Built]] = {
    "gpt2": lambda: _gpt2(192, 4, 128, 12),
    "bert": lambda: _bert(192, 4, 128, 12),
    "llama": lambda: _llama(192, 4, 128, 12),
    "vit": lambda: _vit(192, 4, 160, 12),
    "t5": lambda: _t5(192, 4, 128, 6),
    "whisper": lambda: _whisper(192, 2, 400, 6),
    "swin": _swin,
    "convnext": _convnext,
    "resnet50": ZOO["resnet50"],
    "unet": lambda: (UNet(), {"image": torch.randn(4, 3, 64, 64)}),
    "densenet": lambda: (DenseNet(), {"image": torch.randn(4, 3, 48, 48)}),
    "uneven": ZOO["uneven"],
}

VARIANTS: dict[str, Callable[[], Built]] = {
    "gpt2-dropout": lambda: _gpt2(192, 4, 128, 12, dropout=0.1),
    "t5-no-dropout": lambda: _t5(192, 4, 128, 6, dropout=0.0),
}

LARGE: dict[str, Callable[[], Built]] = {
    "gpt2": lambda: _gpt2(768, 4, 256, 6),
    "bert": lambda: _bert(768, 4, 256, 6),
    "llama": lambda: _llama(768, 4, 256, 6),
    "vit": lambda: _vit(768, 4, 256, 6),
    "t5": lambda: _t5(768, 4, 256, 3),
    "whisper": lambda: _whisper(768, 2, 1000, 3),
}

GPU: dict[str, Callable[[], Built]] = {
    "gpt2": lambda: _gpt2(4096, 4, 2048, 6, heads=32),  # GPT-3 of 6.7B
    "bert": lambda: _bert(1024, 32, 512, 12, heads=16),
    "llama": lambda: _llama(4096, 4, 2048, 6, heads=32, key_heads=32, inner=11008),  # Llama of 7B
    "vit": lambda: _vit(1024, 64, 224, 12, heads=16),
    "t5": lambda: _t5(1024, 16, 512, 6, heads=16, inner=4096),  # T5 large
    "whisper": lambda: _whisper(1024, 8, 3000, 6, heads=16),
}

SIZES: dict[Size, dict[str, Callable[[], Built]]] = {"small": SMALL, "large": LARGE, "gpu": GPU}

TEXT: dict[str, Callable[[int], Built]] = {
    "gpt2": lambda length: _gpt2(256, 8, length, 12),
    "bert": lambda length: _bert(256, 8, length, 12),
    "llama": lambda length: _llama(256, 8, length, 12),
    "t5": lambda length: _t5(256, 8, length, 6),
}
"""For sequences of any length up to the one given; a step of 200 tokens takes a second or two."""

TINY: dict[str, Callable[[], Built]] = {
    "gpt2": lambda: _gpt2(64, 8, 64, 4, dropout=0.1),
    "llama": lambda: _llama(64, 8, 64, 4),
    "vit": lambda: _vit(64, 8, 96, 4),
    "bert": lambda: _bert(64, 8, 64, 4),
    "t5": lambda: _t5(64, 8, 64, 3),
    "whisper": lambda: _whisper(64, 8, 256, 3),
    "resnet": lambda: _resnet(32, 64),
    "unet": lambda: (UNet(8), {"image": torch.randn(8, 3, 64, 64)}),
    "mixtral": lambda: _mixtral(64, 8, 64, 4),
}
"""Steps of a tenth of a second, for rows that are about bytes and bits alone."""
