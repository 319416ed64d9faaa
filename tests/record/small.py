"""Real architectures in their smallest sizes, whose whole profiles can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.rows import daily
from tests.zoo import DAILY, Case, DenseNet, GlueStack, UNet, gpt2, tokens

__all__ = ["MODELS", "ROWS", "warm"]


def images(batch: int, size: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(2, (batch,))}


def bert() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    return BertForMaskedLM(config), tokens(100, 2, 32)


def t5() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        vocab_size=100,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return T5ForConditionalGeneration(config), tokens(100, 2, 32)


def resnet50() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 64, 128], depths=[3, 4, 6, 3])
    return ResNetForImageClassification(config), images(2, 64)


def swin() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=4, window_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], drop_path_rate=0.1
    )
    return SwinForImageClassification(config), images(2, 32)


def convnext() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[2, 2], num_stages=2)
    return ConvNextForImageClassification(config), images(2, 32)


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "gpt2": lambda: (gpt2(n_layer=3, n_embd=32, n_positions=32, vocab_size=100), tokens(100, 2, 32)),
    "bert": bert,
    "t5": t5,
    "resnet50": resnet50,
    "swin": swin,
    "convnext": convnext,
    "unet": lambda: (UNet(8), {"image": torch.randn(2, 3, 16, 16)}),
    "densenet": lambda: (DenseNet(4, 4), {"image": torch.randn(2, 3, 16, 16)}),
    "glue": lambda: (GlueStack(4, 16), {"hidden": torch.randn(8, 8, 16), "mask": torch.ones(8, 8, 1)}),
}


ROWS = daily(MODELS, DAILY)
"""For a test that takes all of them: one of each kind with the suite, the others in the sweep."""


def warm(name: str) -> Case:
    """A small model that has made its caches."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    case = Case(model.train(), batch)
    case.step()
    return case
