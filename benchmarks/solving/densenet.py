"""DenseNet-201 (Huang et al. 2017, table 1): four dense blocks of 6, 12, 48 and 32 layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["DenseNet201"]

LAYERS = (6, 12, 48, 32)
GROWTH = 32
FIRST = 64


class Layer(nn.Module):
    """Reads all that the layers of its block before it made, and makes `GROWTH` channels more."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = unit(channels, 4 * GROWTH, 1)
        self.wide = unit(4 * GROWTH, GROWTH, 3)

    def forward(self, made: list[Tensor]) -> Tensor:
        out: Tensor = self.wide(self.narrow(torch.cat(made, dim=1)))
        return out


class Block(nn.Module):
    """Layers, each of which reads all before it."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(channels + number * GROWTH) for number in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for layer in self.layers:
            made.append(layer(made))
        return torch.cat(made, dim=1)


class DenseNet201(nn.Module):
    """Image in, logits of 1,000 classes out."""

    def __init__(self) -> None:
        super().__init__()
        channels = FIRST
        parts: list[nn.Module] = [
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        for layers in LAYERS:
            parts.append(Block(channels, layers))
            channels += layers * GROWTH
            if layers != LAYERS[-1]:
                parts += [unit(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.head = nn.Linear(channels, 1000)

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(image).mean((2, 3)))
        return out


def unit(channels: int, out: int, kernel: int) -> nn.Module:
    """Norm, ReLU, convolution."""
    convolution = nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True), convolution)
