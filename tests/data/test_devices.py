"""What is known of devices, and what people call them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autockpt import AutockptError
from tests.doors import DEVICES, ROOFLINES, UnknownDevice, gpu_of, named_device, of_memory

GIB = 2**30


def test_a_training_can_use_less_than_the_vendor_states() -> None:
    for name, gpu in DEVICES.items():
        stated = int(gpu.memory.split()[0])
        assert 0.8 * stated * 10**9 < gpu.usable_bytes < 0.97 * stated * GIB, name
        assert gpu.total_gib < stated, name
        assert any(word in gpu.source for word in ("data sheet", "whitepaper", "NVIDIA GeForce RTX ")), name
        assert ROOFLINES[name].half_flops > ROOFLINES[name].single_flops > 1e12
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
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("RTX 6000 Ada", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("RTX A6000", "a6000"),
        ("NVIDIA RTX A5000", "a5000"),
        ("4070", "rtx4070"),
    ],
)
def test_devices_go_by_what_people_call_them(said: str, name: str) -> None:
    assert named_device(said) == name


def test_an_unknown_device_is_told_the_nearest() -> None:
    with pytest.raises(UnknownDevice, match=r"'rtx4095'; did you mean rtx4090 or .* There are t4, "):
        named_device("rtx4095")
    with pytest.raises(UnknownDevice, match=r"'teapot'; An amount, such as 12GB, is memory alone\. There are"):
        named_device("teapot")


def test_a_card_that_does_not_exist_is_told_the_nearest_by_memory() -> None:
    with pytest.raises(UnknownDevice, match="'rtx9990-32GB'; did you mean v100-32gb or rtx5090 or "):
        named_device("rtx9990-32GB")


@pytest.mark.parametrize(("amount", "names"), [("10GB", ["rtx3080"]), ("20GB", ["20GB"]), (" 7.5 gib", ["7.5GiB"])])
def test_an_amount_is_those_that_have_it_or_memory_alone(amount: str, names: list[str]) -> None:
    assert of_memory(amount) == names


@given(st.decimals(1, 2000, places=2))
def test_memory_alone_has_no_rates_and_leaves_room_for_the_context(amount: Decimal) -> None:
    (name,) = of_memory(f"{amount}GiB")
    gpu = gpu_of(name)
    assert gpu.roofline is None
    assert 0 < gpu.usable_bytes < amount * GIB


@pytest.mark.parametrize("amount", ["0GB", "0.5GiB"])
def test_memory_that_holds_nothing_is_refused(amount: str) -> None:
    with pytest.raises(AutockptError, match=r"at least one byte|holds no model"):
        of_memory(amount)
