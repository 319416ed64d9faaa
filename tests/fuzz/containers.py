"""Inner nodes of a drawn model: each calls its children in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.fuzz.around import Cast, Checkpointed, Inner, Without
from tests.fuzz.boxes import BOXES, Boxed
from tests.fuzz.handing import GivesGenerator, Keywords, LeavesTensor
from tests.fuzz.hidden import HIDDEN_CONTAINERS
from tests.fuzz.leaves import WIDTH

__all__ = ["CONTAINERS", "Container"]

Children = Callable[..., nn.Module]


@dataclass(frozen=True)
class Container:
    """How to make a container, and how many children it takes."""

    make: Children
    least: int = 1
    most: int = 1


class Glued(Inner):
    """Computes something of its own between its children."""

    def __init__(self, glue: Callable[[Tensor], Tensor], *children: nn.Module) -> None:
        super().__init__(*children)
        self.glue = glue

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = self.glue(part(x))
        return x


class GluedByNorm(Inner):
    """Computes with parameters and buffers of its own between its children."""

    mean: Tensor
    variance: Tensor

    def __init__(self, *children: nn.Module) -> None:
        super().__init__(*children)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("variance", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = F.layer_norm(part(x).float(), (WIDTH,), self.weight)
            x = F.batch_norm(x.mT, self.mean, self.variance, training=self.training).mT.sigmoid()
        return x


class GluedByParts(Inner):
    """Takes results apart and puts them together again: views, several results of one function, lists of arguments."""

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            left, right = part(x).chunk(2, -1)
            x = torch.cat([F.silu(left[..., :3]), left[..., 3:], torch.where(right > 0, right, 0.1 * right)], -1)
        return x.view(x.shape)


class Residual(Inner):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * super().forward(x)


class Concatenated(Inner):
    def __init__(self, *children: nn.Module) -> None:
        super().__init__(*children)
        self.join = nn.Linear(len(children) * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.join(torch.cat([part(x) for part in self.parts], -1))
        return out


class Twice(Inner):
    """Calls its child twice."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(super().forward(x).sin()) - x


class TwoParents(nn.Module):
    """Two modules share one child."""

    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.left = Residual(child)
        self.right = nn.Sequential(nn.Linear(WIDTH, WIDTH), child)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.right(self.left(x))
        return out


class Skips(Inner):
    """Keeps every result and reads them all at the end."""

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for part in self.parts:
            kept.append(part(kept[-1]))
        return torch.stack(kept).mean(0) * kept[-1].sigmoid()


class Shift(nn.Module):
    """Reads its argument without saving it, so that others may change it afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-0.5, 0.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class ChangesLater(nn.Module):
    """Changes the first child's result in place when the others have read it."""

    def __init__(self, first: nn.Module, *others: nn.Module) -> None:
        super().__init__()
        self.first = nn.Sequential(first, Shift())
        self.others = nn.Sequential(Shift(), *others)

    def forward(self, x: Tensor) -> Tensor:
        first: Tensor = self.first(x)
        out: Tensor = self.others(first)
        first.mul_(0.5)
        return out + first


class ChangesArgument(nn.Module):
    """Changes in place what it gave to its children."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(Shift(), child) for child in children)

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for part in self.parts:
            given = out * 1
            out = part(given)
            given.add_(1)
        return out


class Leaves(Inner):
    """Leaves early, by what the numbers say or by how often it was called."""

    def __init__(self, counts: bool, *children: nn.Module) -> None:
        super().__init__(*children)
        self.counts = counts
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.counts
        for number, part in enumerate(self.parts):
            chance = self.calls > 1 if self.counts else float(torch.rand(())) > 0.5
            if number and chance:
                break
            x = part(x)
        return x


class Rescued(Inner):
    """Lets its last child fail after it has run, and goes on with the others' result."""

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts[:-1]:
            x = part(x)
        try:
            y = self.parts[-1](x)
            return torch.matmul(y, y[0, 0, :3])
        except RuntimeError:
            return x.cos()


class DoubleUse(Inner):
    """Reads its child's result three times, as a leaf of its own too."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        with torch.no_grad():
            scale = y.float().std() + 1
        return y * y.sigmoid() + y[:, :1] / scale


class Sides(nn.Module):
    """Children by name; the side's result takes no gradient further."""

    def __init__(self, main: nn.Module, side: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"main": main, "side": side})

    def forward(self, x: Tensor) -> Tensor:
        side: Tensor = self.parts["side"](x.detach())
        out: Tensor = self.parts["main"](x)
        return out + side.detach() * side


def _in_eval(child: nn.Module) -> nn.Module:
    return Inner(child.eval())


def _partly_frozen(child: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), child.requires_grad_(False))


CONTAINERS: dict[str, Container] = {
    "Sequential": Container(nn.Sequential, 2, 4),
    "List": Container(Inner, 2, 4),
    "GluedByDropout": Container(partial(Glued, partial(F.dropout, p=0.2)), 2, 3),
    "GluedInPlace": Container(partial(Glued, lambda x: x.mul_(0.9)), 1, 3),
    "GluedByTanh": Container(partial(Glued, torch.tanh), 2, 3),
    "GluedByClone": Container(partial(Glued, lambda x: F.dropout(x.clone(), 0.2, inplace=True)), 2, 3),
    "GluedByNorm": Container(GluedByNorm, 1, 3),
    "GluedByParts": Container(GluedByParts, 1, 3),
    "Residual": Container(Residual, 1, 2),
    "Concatenated": Container(Concatenated, 2, 3),
    "Twice": Container(Twice, 1, 2),
    "TwoParents": Container(TwoParents),
    "Skips": Container(Skips, 1, 3),
    "ChangesLater": Container(ChangesLater, 2, 3),
    "ChangesArgument": Container(ChangesArgument, 1, 2),
    "LeavesByChance": Container(partial(Leaves, False), 2, 3),
    "LeavesByCount": Container(partial(Leaves, True), 2, 3),
    "Rescued": Container(Rescued, 1, 2),
    "Autocast": Container(partial(Cast, True), 1, 2),
    "NoAutocast": Container(partial(Cast, False), 1, 2),
    "Checkpointed": Container(partial(Checkpointed, False), 1, 2),
    "CheckpointedReentrant": Container(partial(Checkpointed, True), 1, 2),
    "WithoutGrad": Container(partial(Without, False)),
    "CutOff": Container(partial(Without, True)),
    "DoubleUse": Container(DoubleUse, 1, 2),
    "LeavesTensor": Container(partial(LeavesTensor, False)),
    "LeavesTensors": Container(partial(LeavesTensor, True)),
    "GivesGenerator": Container(partial(GivesGenerator, True, False)),
    "GivesNewGenerator": Container(partial(GivesGenerator, False, False)),
    "GivesGeneratorInside": Container(partial(GivesGenerator, False, True)),
    "Keywords": Container(partial(Keywords, None), 1, 3),
    "FillsList": Container(partial(Keywords, list), 1, 3),
    "FillsCache": Container(partial(Keywords, SimpleNamespace), 1, 2),
    "Sides": Container(Sides, 2, 2),
    **{kind: Container(make, 1, 3) for kind, make in HIDDEN_CONTAINERS.items()},
    "Eval": Container(_in_eval),
    "PartlyFrozen": Container(_partly_frozen),
    **{f"Boxed{kind}": Container(partial(Boxed, pack), 1, 3) for kind, pack in BOXES.items()},
}
