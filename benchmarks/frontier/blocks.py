"""Where a model has its blocks: what a person would hand to `torch.utils.checkpoint`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from benchmarks.frontier.methods import NotHere

__all__ = ["find_blocks"]


def find_blocks(model: nn.Module) -> list[list[nn.Module]]:
    """Return the lists of blocks.

    Blocks are the elements of a list of modules of one class. Where such lists nest, as in stages of blocks, those of
    the second level are. A model that has no such list but is a sequence itself has its elements as blocks.
    """
    lists = [inner for outer in _lists(model) for inner in [*_lists(outer)] or [outer]]
    if not lists and isinstance(model, nn.Sequential):
        lists = [model]
    if not lists:
        raise NotHere("the model has no list of blocks")
    return [list(blocks.children()) for blocks in lists]


def _lists(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost lists of equal modules inside `module`."""
    for child in module.children():
        elements = list(child.children())
        if (
            isinstance(child, (nn.ModuleList, nn.Sequential))
            and len(elements) > 1
            and len({type(element) for element in elements}) == 1
            and any(True for _ in elements[0].children())
        ):
            yield child
        else:
            yield from _lists(child)
