"""What is known of devices, and what people call them."""

from __future__ import annotations

import pytest

from tests.doors import DEVICES, ROOFLINES, UnknownDevice, named_device

GIB = 2**30


def test_a_training_can_use_less_than_the_vendor_states() -> None:
    for name, gpu in DEVICES.items():
        stated = int(gpu.memory.split()[0])
        assert 0.8 * stated * 10**9 < gpu.usable_bytes < 0.97 * stated * GIB, name
        assert gpu.total_gib < stated, name
        assert ("data sheet" in gpu.source) or ("whitepaper" in gpu.source), name
        assert gpu.roofline.half_flops > gpu.roofline.single_flops > 1e12
        assert ROOFLINES[name] is gpu.roofline
    assert ROOFLINES["a100"] is DEVICES["a100-80gb"].roofline


@pytest.mark.parametrize(
    ("said", "name"),
    [
        *((name, name) for name in DEVICES),
        ("RTX 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("A100 (80GB)", "a100-80gb"),
        ("a100", "a100-80gb"),
        ("A100_40GB", "a100-40gb"),
        ("Tesla T4", "t4"),
        ("MI300X", "mi300x"),
        ("v100", "v100-16gb"),
    ],
)
def test_devices_go_by_what_people_call_them(said: str, name: str) -> None:
    assert named_device(said) == name


def test_an_unknown_device_is_told_the_nearest() -> None:
    with pytest.raises(UnknownDevice, match=r"'rtx4080'; did you mean rtx4090 or .* There are t4, "):
        named_device("rtx4080")
    with pytest.raises(UnknownDevice, match="'teapot'; There are"):
        named_device("teapot")
