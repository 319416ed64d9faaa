"""Compiled models that no plan is made for: what their code takes is not predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from .._data.errors import NotApplicable
from .._torch import private as torch_private
from .._torch.private import compiling as private

BACKENDS = ("aot_eager", "inductor")
"""Backends whose memory is predicted. Others allocate by rules of their own."""


def refuse(model: nn.Module, settings: private.CompileSettings) -> None:
    """Refuse what is not predicted: devices that round sizes up, what several ranks share, what drops tensors itself.

    Raises:
        NotApplicable: it is refused; the message says why, and what to do.
    """
    elsewhere = any(each.device.type != "cpu" for each in model.parameters())
    if elsewhere or torch_private.process_group():
        where = "not on a CPU" if elsewhere else "trained by several processes"
        raise NotApplicable(
            f"the model is compiled as a whole and {where}, and what its code takes there is not predicted. Apply to "
            "the model itself, apply(model, budget, inputs=batch, loss=loss), and compile it after that; or compile "
            "its blocks one by one."
        )
    if private.own_share() < 1:
        raise NotApplicable(
            f"torch._functorch.config.activation_memory_budget is {private.own_share():g}: torch drops saved tensors "
            "by itself, and no plan can say which. Set it back to 1; the budget in bytes takes its place."
        )
    if settings.inductor is not None:
        _refuse_inductor(settings.inductor)


def _refuse_inductor(options: Mapping[str, Any]) -> None:
    """Refuse settings of inductor that no plan knows, and a machine on which it cannot compile."""
    from .._torch.private import inductor  # who compiles otherwise loads none of it

    named = inductor.in_the_way(options)
    if named:
        raise NotApplicable(
            f"the model is compiled with {named}, and what its code takes then is not predicted. Leave it out, or "
            "apply to the model itself, apply(model, budget, inputs=batch, loss=loss), and compile it after that."
        )
    if inductor.cpp_compiler_is_missing():
        raise NotApplicable(
            "the model is compiled by inductor, which needs a C++ compiler on a CPU, and there is none. Install the "
            "package g++ (or clang), or name one by CXX=; torch.compile(model, backend='aot_eager') needs none."
        )
