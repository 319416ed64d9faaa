"""A text-conditioned denoiser of the size and shape of Stable Diffusion 1's, in plain torch.

Four levels, two residual blocks each on the way down and three on the way up, attention over pixels and text on the
first three, skip connections that live across the whole middle (Rombach et al. 2022, table 15 and appendix E).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTHS = (320, 640, 1280, 1280)
HEADS = 8
TEXT_WIDTH = 768
TIME_WIDTH = 1280


class Norm(nn.GroupNorm):
    """Group normalisation in single precision, as diffusion models train with mixed precision."""

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__(32, channels, eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise, and return what came in as a type."""
        return super().forward(hidden.float()).type(hidden.dtype)


class Residual(nn.Module):
    """Two convolutions that are told the time step."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = Norm(channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(TIME_WIDTH, out)
        self.norm2, self.conv2 = Norm(out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, hidden: Tensor, time: Tensor) -> Tensor:
        """Add to `hidden`, at `out` channels."""
        inner = self.conv1(functional.silu(self.norm1(hidden)))
        inner = inner + self.time(functional.silu(time))[:, :, None, None]
        inner = self.conv2(functional.silu(self.norm2(inner)))
        out: Tensor = self.skip(hidden) + inner
        return out


class Attention(nn.Module):
    """Attention of pixels to themselves or to the text."""

    def __init__(self, width: int, context_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(context_width, width, bias=False)
        self.value = nn.Linear(context_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor, context: Tensor) -> Tensor:
        """Attend from `hidden` to `context`."""
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.query(hidden), self.key(context), self.value(context))
        )
        attended = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return out


class GatedMlp(nn.Module):
    """A feed-forward layer of four times the width, gated by a GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply it."""
        value, gate = self.enter(hidden).chunk(2, dim=-1)
        out: Tensor = self.leave(value * functional.gelu(gate))
        return out


class Transformer(nn.Module):
    """One transformer block over the pixels of a level."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.enter = Norm(channels, eps=1e-6), nn.Conv2d(channels, channels, 1)
        self.norm1, self.attention = nn.LayerNorm(channels), Attention(channels, channels)
        self.norm2, self.cross_attention = nn.LayerNorm(channels), Attention(channels, TEXT_WIDTH)
        self.norm3, self.mlp = nn.LayerNorm(channels), GatedMlp(channels)
        self.leave = nn.Conv2d(channels, channels, 1)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Add to `image` what its pixels see in one another and in `text`."""
        hidden = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        normal = self.norm1(hidden.float())  # as autocast does on a GPU, and on a CPU does not
        hidden = hidden + self.attention(normal, normal)
        hidden = hidden + self.cross_attention(self.norm2(hidden.float()), text)
        hidden = hidden + self.mlp(self.norm3(hidden.float()))
        out: Tensor = image + self.leave(hidden.transpose(1, 2).reshape(image.shape))
        return out


class Block(nn.Module):
    """A residual block, and attention after it where its level has some."""

    def __init__(self, channels: int, out: int, *, attends: bool) -> None:
        super().__init__()
        self.residual = Residual(channels, out)
        self.transformer = Transformer(out) if attends else None

    def forward(self, hidden: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Apply both."""
        out: Tensor = self.residual(hidden, time)
        return out if self.transformer is None else self.transformer(out, text)


class Upsample(nn.Module):
    """Twice the pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Repeat each pixel, and smooth."""
        out: Tensor = self.conv(functional.interpolate(hidden, scale_factor=2.0))
        return out


class UNet(nn.Module):
    """The denoiser: predicts the noise in `latents` at `timesteps`, told `text`; the loss is the mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTHS[0], TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH))
        self.enter = nn.Conv2d(4, WIDTHS[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        width, skips, last = WIDTHS[0], [WIDTHS[0]], len(WIDTHS) - 1
        for level, out in enumerate(WIDTHS):
            for _ in range(2):
                self.down.append(Block(width, out, attends=level < last))
                skips.append(width := out)
            if level < last:
                self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)
        self.middle = Block(width, width, attends=True)
        self.middle_out = Residual(width, width)
        for level, out in reversed(list(enumerate(WIDTHS))):
            for _ in range(3):
                self.up.append(Block(width + skips.pop(), out, attends=level < last))
                width = out
            if level > 0:
                self.up.append(Upsample(width))
        self.norm, self.leave = Norm(width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, latents: Tensor, timesteps: Tensor, text: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the predicted noise."""
        time = self.time(_waves(timesteps, WIDTHS[0]))
        hidden = self.enter(latents)
        skips = [hidden]
        for part in self.down:
            hidden = part(hidden, time, text) if isinstance(part, Block) else part(hidden)
            skips.append(hidden)
        hidden = self.middle_out(self.middle(hidden, time, text), time)
        for part in self.up:
            if isinstance(part, Block):
                hidden = part(torch.cat([hidden, skips.pop()], dim=1), time, text)
            else:
                hidden = part(hidden)
        predicted = self.leave(functional.silu(self.norm(hidden)))
        return functional.mse_loss(predicted.float(), noise), predicted


def _waves(timesteps: Tensor, width: int) -> Tensor:
    """Sines and cosines of `timesteps` at `width` / 2 frequencies each."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, device=timesteps.device) * (-math.log(10_000) / half))
    angles = timesteps[:, None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
