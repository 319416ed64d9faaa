"""The models that tests and benchmarks train: real ones from transformers with random weights, and hand-made shapes.

Every one holds at least five times its parameters in activations, so that there is something to choose.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["DAILY", "SHORT", "ZOO", "Case", "build"]

Built = tuple[nn.Module, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """A model ready to train.

    Attributes:
        model: the model, in train mode.
        kwargs: its batch, by keyword.
    """

    model: nn.Module
    kwargs: dict[str, Any]

    def forward(self) -> tuple[Any, torch.Tensor]:
        """Run the model; return its outputs, which a training loop would hold, and the loss."""
        outputs = self.model(**self.kwargs)
        return outputs, loss_of(outputs)

    def step(self) -> None:
        """Run forward and backward as a training loop does, from no gradients to no gradients."""
        outputs, loss = self.forward()
        loss.backward()
        del outputs, loss
        self.model.zero_grad()


def loss_of(outputs: Any) -> torch.Tensor:
    """Return the loss that a model returns, or a sum of its outputs."""
    loss: torch.Tensor | None = getattr(outputs, "loss", None)
    return loss if loss is not None else total(outputs)


def total(outputs: Any) -> torch.Tensor:
    """Sum whatever differentiable tensors come out: a loss for models that have none."""
    parts = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    return torch.stack([part.sum() for part in parts if part.requires_grad]).sum()


def build(name: str, *, short: bool = False) -> Case:
    """Build a model of the zoo, or its short form, the same each time."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about configurations, not about us
        model, kwargs = (SHORT if short else ZOO)[name]()
    return Case(model.train(), kwargs)


def tokens(vocabulary: int, batch: int = 4, length: int = 128) -> dict[str, torch.Tensor]:
    ids = torch.randint(vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids}


def gpt2(
    *,
    vocab_size: int = 500,
    n_layer: int = 12,
    n_embd: int = 96,
    n_positions: int = 128,
    use_cache: bool = False,
    dropout: float = 0.1,
    n_head: int = 4,
) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    config = GPT2Config(
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_positions=n_positions,
        vocab_size=vocab_size,
        use_cache=use_cache,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def t5(layers: int = 6, batch: int = 4) -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=96,
        d_kv=24,
        d_ff=256,
        num_layers=layers,
        num_heads=4,
        vocab_size=500,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return T5ForConditionalGeneration(config), tokens(500, batch)


def resnet50(*depths: int) -> Built:
    """ResNet-50's 3-4-6-3 bottlenecks, narrow, so that activations outweigh parameters."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64, 128, 256], depths=[*depths] or [3, 4, 6, 3])
    batch = {"pixel_values": torch.randn(8, 3, 96, 96), "labels": torch.randint(2, (8,))}
    return ResNetForImageClassification(config), batch


def conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class UNet(nn.Module):
    """Three levels down and up, with skip connections that live across the whole middle."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        # Going down, each level is wider than the one before; going up, it returns to that width.
        self.enter = conv(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(conv(a, b), conv(b, b)) for a, b in zip([width, *sizes[:-1]], sizes, strict=True)
        )
        self.middle = nn.Sequential(conv(4 * width, 4 * width), conv(4 * width, 4 * width))
        self.up = nn.ModuleList(
            nn.Sequential(conv(2 * b, b), conv(b, a)) for a, b in zip([width, *sizes[:-1]], sizes, strict=True)
        )
        self.leave = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden, skips = self.enter(image), []
        for level in self.down:
            hidden = level(hidden)
            skips.append(hidden)
            hidden = nn.functional.max_pool2d(hidden, 2)
        hidden = self.middle(hidden)
        for level in reversed(self.up):
            hidden = nn.functional.interpolate(hidden, scale_factor=2)
            hidden = level(torch.cat([hidden, skips.pop()], dim=1))
        leave: torch.Tensor = self.leave(hidden)
        return leave


class DenseNet(nn.Module):
    """Layers that read the concatenation of all before, handed over in a list that goes on growing."""

    class Layer(nn.Module):
        def __init__(self, inputs: int, growth: int) -> None:
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, growth, 3, padding=1)

        def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
            out: torch.Tensor = self.conv(torch.relu(self.norm(torch.cat(features, dim=1))))
            return out

    def __init__(self, layers: int = 10, growth: int = 12) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.ModuleList(self.Layer(16 + i * growth, growth) for i in range(layers))
        self.head = nn.Linear(16 + layers * growth, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = [self.enter(image)]
        for layer in self.layers:
            features.append(layer(features))
        out: torch.Tensor = self.head(torch.cat(features, dim=1).mean((2, 3)))
        return out


def uneven(rows: int = 1024) -> Built:
    """A Sequential whose elements differ hundredfold in what they hold."""
    layers: list[nn.Module] = []
    width = 32
    for i in range(10):
        wide = [512, 64, 1024, 32, 768, 96, 256, 2048, 48, 384][i]
        layers += [nn.Linear(width, wide), nn.GELU(), nn.Dropout(0.1), nn.Linear(wide, 32)]
        width = 32
    return nn.Sequential(*layers), {"input": torch.randn(rows, 32)}


class GlueBlock(nn.Module):
    """Dropout, a mask by keyword, and a tuple out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.narrow, self.drop = nn.Linear(4 * width, width), nn.Dropout(0.2)

    def forward(self, hidden: torch.Tensor, *, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.drop(self.narrow(nn.functional.gelu(self.wide(self.norm(hidden)))))
        return hidden + out * mask, out.mean(-1)


class GlueStack(nn.Module):
    """Blocks in a ModuleList with the parent's own code between them, and an exit that moves from step to step."""

    def __init__(self, blocks: int = 10, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GlueBlock(width) for _ in range(blocks))
        self.scale = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, 8)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor, exit_after: int | None = None) -> torch.Tensor:
        gates = []
        for number, block in enumerate(self.blocks):
            hidden, gate = block(hidden, mask=mask)
            gates.append(gate)
            hidden = torch.tanh(hidden) * self.scale
            if number + 1 == exit_after:
                break
        out: torch.Tensor = self.head(hidden).sum(-1) + torch.stack(gates).sum(0)
        return out


def gpt2_case(**options: Any) -> Callable[[], Built]:
    extra = {"output_hidden_states": True} if options.pop("hidden_states", False) else {}
    batch = options.pop("batch", 4)
    return lambda: (gpt2(**options), {**tokens(500, batch), **extra})


ZOO: dict[str, Callable[[], Built]] = {
    "gpt2": gpt2_case(),
    "gpt2-vocabulary": gpt2_case(vocab_size=50257, n_embd=192, batch=2),
    "gpt2-cache": gpt2_case(use_cache=True, n_layer=6),
    "gpt2-hidden-states": gpt2_case(hidden_states=True, n_layer=6),
    "t5": t5,
    "resnet50": resnet50,
    "unet": lambda: (UNet(), {"image": torch.randn(4, 3, 64, 64)}),
    "densenet": lambda: (DenseNet(), {"image": torch.randn(4, 3, 48, 48)}),
    "uneven": uneven,
    "glue": lambda: (GlueStack(), {"hidden": torch.randn(64, 32, 64), "mask": torch.ones(64, 32, 1)}),
}

DAILY = ("gpt2", "resnet50", "unet", "glue")
"""One of each kind: a transformer, a row of norms, skips that live long, and code between blocks. What a test does with
all of them it does with these every day, and with the others in the sweep."""

SHORT: dict[str, Callable[[], Built]] = {
    "gpt2": gpt2_case(n_layer=4),
    "gpt2-vocabulary": gpt2_case(vocab_size=8000, n_layer=4, batch=2),
    "gpt2-cache": gpt2_case(use_cache=True, n_layer=3, batch=2),
    "gpt2-hidden-states": gpt2_case(hidden_states=True, n_layer=3, batch=2),
    "t5": lambda: t5(2, batch=2),
    "resnet50": lambda: resnet50(1, 2, 2, 1),
    "unet": lambda: (UNet(), {"image": torch.randn(4, 3, 48, 48)}),
    "densenet": lambda: (DenseNet(), {"image": torch.randn(2, 3, 32, 32)}),
    "uneven": lambda: uneven(256),
    "glue": lambda: (GlueStack(), {"hidden": torch.randn(16, 32, 64), "mask": torch.ones(16, 32, 1)}),
}
"""The same with fewer blocks and samples, for tests of what is decided by how blocks are made and not by how many."""
