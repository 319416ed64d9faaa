"""How each recorded profile is made: models on the meta device, batches without values, nothing downloaded.

Models come from transformers with the configuration of the published one, or stand beside this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import torch

from .. import profile
from .._data.profile import Profile
from .._data.tables import Recipe
from .unet import UNet

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What one recording needs.

    Attributes:
        build: returns the model and its batch; runs on the meta device.
        batch: what a step trains on, in words.
        precision: ``bf16`` parameters, or ``bf16 autocast`` over parameters in single precision.
        device: whose roofline gives the seconds.
        optimizer: builds it over the parameters.
        notes: what is not as in a training run on that device.
    """

    build: Callable[[], tuple[torch.nn.Module, Batch]]
    batch: str
    precision: Literal["bf16", "bf16 autocast"]
    device: str
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW
    notes: tuple[str, ...] = ()


def record(name: str) -> Profile:
    """Record the profile called `name`, in fake mode.

    Args:
        name: a key of `RECIPES`.

    Returns:
        The profile, with how it was made in it.
    """
    setup = RECIPES[name]
    with torch.device("meta"):
        model, batch = setup.build()
    model.train()
    autocast = setup.precision == "bf16 autocast"
    if not autocast:
        model.to(torch.bfloat16)
        batch = {name: each.bfloat16() if each.is_floating_point() else each for name, each in batch.items()}
    optimizer = setup.optimizer(model.parameters())
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        recorded = profile(model, batch, optimizer=optimizer, mode="fake", device=setup.device)
    return msgspec.structs.replace(
        recorded,
        recipe=Recipe(
            batch=setup.batch,
            precision=setup.precision,
            optimizer=type(optimizer).__name__,
            versions={package: version(package).partition("+")[0] for package in ("torch", "transformers")},
            command=f"python -m autockpt.profiles {name}",
        ),
        notes=(*setup.notes, *recorded.notes),
    )


def whole_sequences() -> str:
    """Return the name of an attention that is told of no mask, as no step on sequences of one length needs one.

    transformers looks at the values of positions to know that there is no padding and no packing; here they have none,
    so that it would build masks, repeat grouped heads, and ask for a slower kernel.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("whole_sequences", sdpa_attention_forward)
    return "whole_sequences"


def gpt2_xl() -> tuple[torch.nn.Module, Batch]:
    """GPT-2 XL, 1.6 billion parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=1600,
        n_layer=48,
        n_head=25,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        attn_implementation=whole_sequences(),
    )
    return GPT2LMHeadModel(config), tokens(8, 1024)


def llama_1b() -> tuple[torch.nn.Module, Batch]:
    """Llama 3.2 1B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation=whole_sequences(),
    )
    return LlamaForCausalLM(config), tokens(4, 4096)


def llama_8b() -> tuple[torch.nn.Module, Batch]:
    """Llama 3 8B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        use_cache=False,
        attn_implementation=whole_sequences(),
    )
    return LlamaForCausalLM(config), tokens(1, 8192)


def mixtral_small() -> tuple[torch.nn.Module, Batch]:
    """Mixtral's architecture, eight experts of which two run: of 1.9 billion parameters a token meets 0.6."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=20,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        use_cache=False,
        attn_implementation=whole_sequences(),
        experts_implementation="grouped_mm",
    )
    return MixtralForCausalLM(config), tokens(8, 2048)


def bert_large() -> tuple[torch.nn.Module, Batch]:
    """BERT large, masked language modelling."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    return BertForMaskedLM(config), tokens(64, 512)


def t5_large() -> tuple[torch.nn.Module, Batch]:
    """T5 large, 512 tokens to 128."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=1024,
        d_ff=4096,
        dropout_rate=0.0,
        num_layers=24,
        num_heads=16,
        use_cache=False,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    batch = {**tokens(16, 512), "labels": ids(16, 128)}
    return T5ForConditionalGeneration(config), batch


def whisper_medium() -> tuple[torch.nn.Module, Batch]:
    """Whisper medium, 30 seconds of speech to 448 tokens."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=1024,
        encoder_layers=24,
        decoder_layers=24,
        encoder_attention_heads=16,
        decoder_attention_heads=16,
        encoder_ffn_dim=4096,
        decoder_ffn_dim=4096,
        use_cache=False,
        attn_implementation=whole_sequences(),
    )
    batch = {"input_features": torch.empty(16, 80, 3000), "labels": ids(16, 448)}
    return WhisperForConditionalGeneration(config), batch


def vit_large() -> tuple[torch.nn.Module, Batch]:
    """ViT-L/16 at 224 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000
    )
    return ViTForImageClassification(config), images(128)


def swin_base() -> tuple[torch.nn.Module, Batch]:
    """Swin-B at 224 pixels."""
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        embed_dim=128,
        depths=[2, 2, 18, 2],
        num_heads=[4, 8, 16, 32],
        num_labels=1000,
        attn_implementation="eager",
    )
    return SwinForImageClassification(config), images(128)


def resnet_50() -> tuple[torch.nn.Module, Batch]:
    """ResNet-50 at 224 pixels."""
    return _resnet([3, 4, 6, 3]), images(256)


def resnet_152() -> tuple[torch.nn.Module, Batch]:
    """ResNet-152 at 224 pixels."""
    return _resnet([3, 8, 36, 3]), images(256)


def sd_unet() -> tuple[torch.nn.Module, Batch]:
    """A denoiser of the size and shape of Stable Diffusion 1's, for images of 512 pixels."""
    latents = torch.empty(16, 4, 64, 64)
    text = torch.empty(16, 77, 768)
    timesteps = torch.empty(16, dtype=torch.long)
    return UNet(), {"latents": latents, "timesteps": timesteps, "text": text, "noise": torch.empty_like(latents)}


def _resnet(depths: list[int]) -> torch.nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    model: torch.nn.Module = ResNetForImageClassification(ResNetConfig(depths=depths, num_labels=1000))
    return model


def ids(*shape: int) -> torch.Tensor:
    """Tokens without values."""
    return torch.empty(shape, dtype=torch.long)


def tokens(*shape: int) -> Batch:
    """A batch of a language model."""
    return {"input_ids": ids(*shape), "labels": ids(*shape)}


def images(count: int) -> Batch:
    """A batch of ImageNet."""
    return {"pixel_values": torch.empty(count, 3, 224, 224), "labels": torch.empty(count, dtype=torch.long)}


DROPOUT = (
    "without dropout: fake tensors pass as the CPU's, whose dropout holds masks of two bytes where those of a GPU take "
    "one, and whose attention with dropout holds the scores"
)
AUTOCAST = (
    "under the CPU's autocast: that of a GPU also normalises in single precision what comes in with 16 bits, which "
    "happens to none of the blocks of this model"
)
EAGER = "attention in plain operators, scores held: no fused kernel of the CPU takes a bias that is trained"
GROUPED = (
    "routing without dropped tokens, by sorting and grouped matrix products; the sizes of the groups do not matter"
)


def _autocast(build: Callable[[], tuple[torch.nn.Module, Batch]], batch: str, device: str, *notes: str) -> Setup:
    """Single precision under autocast, AdamW: how most models are trained on one GPU."""
    return Setup(build=build, batch=batch, precision="bf16 autocast", device=device, notes=(AUTOCAST, *notes))


def _pure(build: Callable[[], tuple[torch.nn.Module, Batch]], batch: str, device: str, *notes: str) -> Setup:
    """Parameters, gradients and AdamW's state in bfloat16: how models that would not fit otherwise are tuned."""
    return Setup(build=build, batch=batch, precision="bf16", device=device, notes=notes)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


RECIPES: Mapping[str, Setup] = MappingProxyType(
    {
        "bert-large": _autocast(bert_large, "64 × 512 tokens", "a100", DROPOUT),
        "gpt2-xl": _pure(gpt2_xl, "8 × 1024 tokens", "rtx4090", DROPOUT),
        "llama-1b": _autocast(llama_1b, "4 × 4096 tokens", "a100"),
        "llama-8b": _pure(llama_8b, "1 × 8192 tokens", "h100"),
        "mixtral-small": _pure(mixtral_small, "8 × 2048 tokens", "a100", GROUPED),
        "resnet-50": replace(_autocast(resnet_50, "256 images", "rtx4090"), optimizer=_momentum),
        "resnet-152": replace(_autocast(resnet_152, "256 images", "rtx4090"), optimizer=_momentum),
        "sd-unet": _autocast(sd_unet, "16 × 64×64 latents", "rtx4090"),
        "swin-base": _pure(swin_base, "128 images", "rtx4090", EAGER),
        "t5-large": _autocast(t5_large, "16 × 512+128 tokens", "a100", DROPOUT, EAGER),
        "vit-large": _autocast(vit_large, "128 images", "rtx4090"),
        "whisper-medium": _autocast(whisper_medium, "16 × 30 s", "a100"),
    }
)
