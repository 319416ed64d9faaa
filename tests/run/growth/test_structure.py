"""Where two profiles part, in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from autockpt import Profile
from autockpt._run.growth import same_structure
from tests.handmade import chain_profile

replace = msgspec.structs.replace


def other_device(profile: Profile) -> Profile:
    return replace(profile, device="cuda")


def more_parameters(profile: Profile) -> Profile:
    return replace(profile, static=replace(profile.static, parameter_bytes=5 * 2**20))


def gradients(profile: Profile) -> Profile:
    return replace(profile, static=replace(profile.static, gradient_bytes=2**20))


def other_draws(profile: Profile) -> Profile:
    return replace(profile, calls=(*profile.calls[:-1], replace(profile.calls[-1], draws=True)))


def other_names(profile: Profile) -> Profile:
    return replace(profile, calls=(*profile.calls[:-1], replace(profile.calls[-1], name="h.3.ffn")))


def buffers(profile: Profile) -> Profile:
    return replace(profile, buffer_bytes={"seen": 4})


def other_tensor(profile: Profile) -> Profile:
    return replace(profile, saves=replace(profile.saves, tensor=(1, *profile.saves.tensor[1:])))


def earlier_death(profile: Profile) -> Profile:
    tensors = profile.tensors
    return replace(profile, tensors=replace(tensors, death=(tensors.death[0] - 1, *tensors.death[1:])))


def one_more_tensor(profile: Profile) -> Profile:
    """As the workspace of a kernel that only larger batches need."""
    after = profile.calls[2].enter + 1

    def later(ticks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(tick + (tick >= after) for tick in ticks)

    tensors, saves = profile.tensors, profile.saves
    place = sum(birth < after for birth in tensors.birth)

    def moved(number: int) -> int:
        return number + (number >= place)

    return replace(
        profile,
        ticks=profile.ticks + 1,
        forward_ticks=profile.forward_ticks + 1,
        calls=tuple(
            replace(
                call,
                enter=later((call.enter,))[0],
                exit=later((call.exit,))[0],
                arguments=tuple(replace(each, tensor=moved(each.tensor)) for each in call.arguments),
                outputs=tuple(map(moved, call.outputs)),
            )
            for call in profile.calls
        ),
        tensors=replace(
            tensors,
            bytes=(*tensors.bytes[:place], 8, *tensors.bytes[place:]),
            birth=tuple(sorted((*later(tensors.birth), after))),
            natural=(*later(tensors.natural)[:place], after + 1, *later(tensors.natural)[place:]),
            death=(*later(tensors.death)[:place], after + 1, *later(tensors.death)[place:]),
        ),
        saves=replace(
            saves,
            tensor=tuple(map(moved, saves.tensor)),
            pack=later(saves.pack),
            unpack=later(saves.unpack),
            release=later(saves.release),
        ),
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_device, "device is '.*' in one and 'cuda' in the other"),
        (more_parameters, "parameter_bytes are 4,194,304 in one and 5,242,880 in the other"),
        (gradients, "gradient_bytes are 0 in one"),
        (other_draws, r"profile.calls\[12\].draws is False in one and True in the other"),
        (other_names, "call 12 is 'h.3.mlp#0' in one and 'h.3.ffn#0' in the other"),
        (buffers, r"profile.buffer_bytes is about \[\] in one and \['seen'\] in the other"),
        (other_tensor, r"profile.saves.tensor\[0\] is 0 in one and 1 in the other"),
        (earlier_death, r"profile.tensors.death\[0\]"),
        (one_more_tensor, "in the forward of 'h.0.attn#0', stands .* in one and .* in the other"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_first_difference_is_said(change: Any, said: str) -> None:
    import re

    found = same_structure(chain_profile(), change(chain_profile()))
    assert re.search(said, found), found


def test_bytes_seconds_signatures_and_notes_may_differ() -> None:
    one = chain_profile()
    other = replace(
        one,
        recorded="2027-01-01T00:00:00",
        notes=("something",),
        plain_seconds=9.0,
        static=replace(one.static, input_bytes=77),
        tensors=replace(one.tensors, bytes=tuple(2 * each for each in one.tensors.bytes)),
        calls=tuple(replace(call, signature="other", exit_seconds=call.exit_seconds + 1.0) for call in one.calls),
    )
    assert same_structure(one, other) == ""
