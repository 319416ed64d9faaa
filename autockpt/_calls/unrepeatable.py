"""Modules in which torch does something that no replay can see, whatever their forward is."""

from __future__ import annotations

import torch
from torch import nn

from .._torch.devices import device_of


def why_unrepeatable(module: nn.Module) -> str:
    """Say why a call of a module cannot be replayed; empty where nothing is known against it."""
    for inner in module.modules():
        if isinstance(inner, nn.RReLU):
            return "contains an RReLU, which draws its noise after autograd has saved it"
        if isinstance(inner, torch.jit.ScriptModule):
            return "contains a scripted module, whose flags and parameters are out of Python's reach"
        if isinstance(inner, nn.RNNBase) and _draws_in_cudnn(inner):
            return "contains recurrent layers with dropout, which cuDNN draws from a state of its own"
    return ""


def _draws_in_cudnn(layers: nn.RNNBase) -> bool:
    drops, devices = bool(layers.dropout) and layers.num_layers > 1, {each.device for each in layers.parameters()}
    return drops and any(device_of(device).draws_inside_recurrent_layers for device in devices)
