"""Operators that multiply matrices or convolve: most of a step's time, and what OpenAI's "speed" never repeats."""

from __future__ import annotations

# fmt: off
PRODUCTS = frozenset((
    "mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_int_mm",
    "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm", "matmul", "chain_matmul", "linalg_multi_dot",
    "multi_dot", "tensordot", "einsum", "linear", "mkldnn_linear", "bilinear", "_trilinear", "lstm", "gru",
    "rnn_tanh", "rnn_relu",
))
# fmt: on
"""Names of operators, and of functions that a profile may list in place of their operators."""

PARTS = ("conv", "attention", "attn", "_rnn")
"""Parts of names: of further such operators, as ``cudnn_convolution`` or ``_scaled_dot_product_flash_attention``."""


def multiplies(operator: str) -> bool:
    """Whether an operator, by its name in profiles, multiplies matrices: products, convolutions, attention, RNNs."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name in PRODUCTS or (any(part in name for part in PARTS) and "convert" not in name)
