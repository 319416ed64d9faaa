"""The models behind the recorded profiles, and batches for them: on the meta device, without values.

They come from transformers with the configuration of the published one, or stand beside this file.
"""

from __future__ import annotations

import torch

from .unet import UNet

Batch = dict[str, torch.Tensor]


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
