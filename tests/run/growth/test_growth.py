"""Whole profiles at other sizes: drawn ones, and real ones held against what is recorded there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autockpt
from autockpt import GrowthError, Profile
from autockpt._choose.candidates import find_candidates
from autockpt._run.growth import Growth, same_structure
from autockpt.solvers import simulate
from tests.handmade import chain_profile


@st.composite
def families(draw: st.DrawFn) -> Callable[[int], Profile]:
    """A profile for every size: each tensor constant or with a power of the size."""
    base = chain_profile(3)
    powers = draw(st.lists(st.integers(0, 2), min_size=len(base.tensors), max_size=len(base.tensors)))
    host = draw(st.floats(0, 2))

    def at(size: int) -> Profile:
        sizes = tuple(each // 64 * size**power for each, power in zip(base.tensors.bytes, powers, strict=True))
        pace = host + size
        calls = (
            msgspec.structs.replace(
                call,
                enter_seconds=call.enter_seconds * pace,
                exit_seconds=call.exit_seconds * pace,
                signature=f"s{size}",
            )
            for call in base.calls
        )
        return msgspec.structs.replace(
            base,
            tensors=msgspec.structs.replace(base.tensors, bytes=sizes),
            saves=msgspec.structs.replace(base.saves, seconds=tuple(each * pace for each in base.saves.seconds)),
            calls=tuple(calls),
            static=msgspec.structs.replace(base.static, input_bytes=100 * size),
            plain_seconds=base.plain_seconds * pace,
        )

    return at


@given(families(), st.lists(st.integers(1, 60), min_size=3, max_size=3, unique=True))
@settings(max_examples=40)
def test_a_drawn_family_is_continued(at: Callable[[int], Profile], sizes: list[int]) -> None:
    one, other, wanted = sizes
    found, truth = Growth.of({one: at(one), other: at(other)}).at(wanted), at(wanted)
    assert found.tensors == truth.tensors
    assert found.static == truth.static
    assert found.plain_seconds == pytest.approx(truth.plain_seconds)
    assert found.saves.seconds == pytest.approx(truth.saves.seconds)
    assert [call.exit_seconds for call in found.calls] == pytest.approx([call.exit_seconds for call in truth.calls])
    assert same_structure(found, truth) == ""
    assert f"size {wanted}" in found.notes[-1]


def test_the_recorded_profiles_are_themselves() -> None:
    one, other = chain_profile(notes=("one",)), chain_profile(notes=("other",))
    growth = Growth.of({2: one, 4: other})
    assert growth.at(2) is one
    assert growth.at(4) is other
    assert growth.at(3).notes[:2] == ("one", "other")


def test_calls_that_are_equal_at_one_size_only_stay_apart() -> None:
    """Equal signatures share one median of seconds, so they must not come of shapes that meet by chance."""
    one = chain_profile()
    apart = [msgspec.structs.replace(call, signature=f"{i}") for i, call in enumerate(one.calls)]
    found = Growth.of({2: one, 4: msgspec.structs.replace(one, calls=tuple(apart))}).at(8)
    assert len({call.signature for call in found.calls}) == len(one.calls)


@pytest.mark.parametrize(
    ("profiles", "said"),
    [
        ({2: chain_profile()}, "two sizes"),
        ({2: chain_profile(), 3: chain_profile(), 4: chain_profile()}, "two sizes"),
        ({2: chain_profile(), (4, 8): chain_profile()}, "as many dimensions"),
        ({2: chain_profile(3), 4: chain_profile(4)}, "call 10 is none in one and 'h.3#0' in the other"),
    ],
    ids=["one", "three", "dimensions", "structures"],
)
def test_what_does_not_grow_is_refused(profiles: Mapping[int, Profile], said: str) -> None:
    with pytest.raises(GrowthError, match=said):
        Growth.of(profiles)


def test_another_number_of_dimensions_is_refused() -> None:
    with pytest.raises(GrowthError, match="dimensions"):
        Growth.of({2: chain_profile(), 4: chain_profile()}).at((8, 8))


def gpt2(samples: int, length: int) -> tuple[Any, Any]:
    from tests.zoo import gpt2, tokens

    return gpt2(n_layer=1, n_embd=48), tokens(500, samples, length)


def eager(samples: int, length: int) -> tuple[Any, Any]:
    """Attention scores and their dropout grow with the square of the length."""
    model, batch = gpt2(samples, length)
    model.set_attn_implementation("eager")
    return model, batch


def t5(samples: int, length: int) -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    from tests.zoo import tokens

    config = T5Config(
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=1,
        num_heads=4,
        vocab_size=500,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), tokens(500, samples, length)


def vit(samples: int, side: int) -> tuple[Any, Any]:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=side, patch_size=8
    )
    return ViTForImageClassification(config), {"pixel_values": torch.randn(samples, 3, side, side)}


def resnet(samples: int, side: int) -> tuple[Any, Any]:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1])
    return ResNetForImageClassification(config), {"pixel_values": torch.randn(samples, 3, side, side)}


def unet(samples: int, side: int) -> tuple[Any, Any]:
    import torch

    from tests.zoo import UNet

    return UNet(8), {"image": torch.randn(samples, 3, side, side)}


ZOO = {
    "gpt2": (gpt2, (2, 32), (4, 96), [(3, 64), (8, 128)]),
    "eager": (eager, (2, 32), (4, 96), [(3, 64), (8, 128)]),
    "t5": (t5, (2, 32), (6, 32), [(3, 32), (12, 32)]),
    "vit": (vit, (2, 64), (6, 64), [(4, 64), (12, 64)]),
    "resnet": (resnet, (2, 32), (6, 32), [(4, 32), (12, 32)]),
    "unet": (unet, (2, 32), (6, 32), [(4, 32), (12, 32)]),
}


QUICK = ("eager",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.sweep) for name in ZOO])
def test_a_recorded_step_is_what_was_predicted(name: str) -> None:
    """Between the recorded sizes and at twice them: plain, and under plans, which the predicted profile chose."""
    pytest.importorskip("torch")
    build, first, second, wanted = ZOO[name]

    def recorded(size: tuple[int, int]) -> Profile:
        model, batch = build(*size)
        return autockpt.profile(model, batch)

    growth = Growth.of({size: recorded(size) for size in (first, second)})
    for size, most in zip(wanted, (0.01, 0.03), strict=True):
        found, truth = growth.at(size), recorded(size)
        assert same_structure(found, truth) == ""
        assert found.static == truth.static
        one, other = (find_candidates(each) for each in (found, truth))
        numbers = {(each.members, each.alone): i for i, each in enumerate(other.replays)}
        plain_bytes = simulate(one.problem, ()).peak_bytes
        for share in (1.0, 0.8, 0.6):
            plan = chosen(found, one, int(plain_bytes * share))
            same = [numbers[each.members, each.alone] for each in (one.replays[i] for i in plan)]
            predicted_bytes = simulate(one.problem, plan).peak_bytes
            assert predicted_bytes == pytest.approx(simulate(other.problem, same).peak_bytes, rel=most)


def chosen(profile: Profile, candidates: Any, budget_bytes: int) -> tuple[int, ...]:
    """What is chosen within a budget, or what gets lowest."""
    from autockpt.solvers import Infeasible, solve

    try:
        return solve(candidates.problem, budget_bytes, solver="articulation").chosen
    except Infeasible as error:
        assert error.chosen is not None
        return error.chosen


def test_the_optimizer_needs_the_same_at_every_size() -> None:
    before, after = (
        msgspec.structs.replace(chain_profile(), optimizer=words, optimizer_step_bytes=5)
        for words in ("AdamW, before its first step", "AdamW, as it is")
    )
    found = Growth.of({2: before, 4: after}).at(9)
    assert (found.optimizer, found.optimizer_step_bytes) == (before.optimizer, 5)
