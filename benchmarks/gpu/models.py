"""The models of all stages, from configurations with random weights: in a size for a GPU, and one for a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

__all__ = ["MODELS", "Built", "Size", "build", "gpt2", "tokens_of"]

Built = tuple[nn.Module, dict[str, torch.Tensor]]
Size = Literal["full", "tiny"]


def build(name: str, size: Size, device: torch.device, *, times: int = 1) -> Built:
    """Build a model and its batch on a device, the same each time; the batch `times` as large as usual."""
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")  # transformers warns about configurations, not about us
        model, batch = MODELS[name][size]()
    if name in HALF:
        model = model.to(torch.bfloat16)
    return model.train(), {key: torch.cat([value] * times) for key, value in batch.items()}


def gpt2(
    layers: int, width: int, heads: int, batch: int, length: int, vocabulary: int = 50257, **changes: float
) -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": length, "vocab_size": vocabulary}
    config = GPT2Config(**sizes, **changes, use_cache=False, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    return GPT2LMHeadModel(config), tokens(vocabulary, batch, length)


def llama(layers: int, width: int, heads: int, inner: int, batch: int, length: int, vocabulary: int = 32000) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        use_cache=False,
    )
    return LlamaForCausalLM(config), tokens(vocabulary, batch, length)


def bert(layers: int, width: int, heads: int, batch: int, length: int, vocabulary: int = 30522) -> Built:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=vocabulary,
        max_position_embeddings=length,
    )
    return BertForMaskedLM(config), tokens(vocabulary, batch, length)


def resnet(depths: list[int], width: int, batch: int, pixels: int) -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    hidden = [4 * width * 2**i for i in range(len(depths))]
    config = ResNetConfig(embedding_size=width, hidden_sizes=hidden, depths=depths, num_labels=1000)
    images = torch.randn(batch, 3, pixels, pixels)
    return ResNetForImageClassification(config), {"pixel_values": images, "labels": torch.randint(1000, (batch,))}


def encoder(layers: int, width: int, heads: int, batch: int, length: int) -> Built:
    """torch's own encoder, without a vocabulary."""
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return model, {"src": torch.randn(batch, length, width)}


def tokens_of(batch: dict[str, torch.Tensor]) -> int:
    """How many tokens, or else samples, a batch has."""
    ids = batch.get("input_ids")
    return len(next(iter(batch.values()))) if ids is None else ids.numel()


def tokens(vocabulary: int, batch: int, length: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids}


HALF = ("llama-100m", "llama-1b", "llama-3b")
"""In bfloat16, parameters too; the others in single precision."""

MODELS: dict[str, dict[Size, Callable[[], Built]]] = {
    "gpt2-small": {
        "full": lambda: gpt2(12, 768, 12, 8, 1024),
        "tiny": lambda: gpt2(3, 64, 4, 4, 64, 500),
    },
    "gpt2-large": {
        "full": lambda: gpt2(36, 1280, 20, 8, 1024),
        "tiny": lambda: gpt2(3, 64, 4, 4, 64, 500),
    },
    "llama-100m": {
        "full": lambda: llama(12, 768, 12, 2048, 8, 1024),
        "tiny": lambda: llama(3, 64, 4, 160, 4, 64, 500),
    },
    "llama-1b": {
        "full": lambda: llama(16, 2048, 32, 8192, 4, 2048),
        "tiny": lambda: llama(3, 64, 4, 160, 4, 64, 500),
    },
    "llama-3b": {
        "full": lambda: llama(28, 3072, 24, 8192, 4, 2048),
        "tiny": lambda: llama(3, 64, 4, 160, 4, 64, 500),
    },
    "bert-large": {
        "full": lambda: bert(24, 1024, 16, 32, 512),
        "tiny": lambda: bert(4, 64, 4, 4, 64, 500),
    },
    "resnet-50": {
        "full": lambda: resnet([3, 4, 6, 3], 64, 184, 224),
        "tiny": lambda: resnet([2, 2], 8, 16, 64),
    },
    "resnet-152": {
        "full": lambda: resnet([3, 8, 36, 3], 64, 64, 224),
        "tiny": lambda: resnet([2, 3], 8, 16, 64),
    },
    "encoder": {
        "full": lambda: encoder(12, 1024, 16, 32, 512),
        "tiny": lambda: encoder(3, 64, 4, 4, 64),
    },
}
