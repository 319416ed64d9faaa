"""What forward saves and no backward reads is freed at no cost."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from torch import Tensor, nn

import autockpt
from tests.toys.chains import feed_forward
from tests.toys.told import Told
from tests.twin import differing, gradients

ROWS, WIDTH = 512, 64


def loss_of(own: Told, batch: Tensor) -> Any:
    """Takes the value of one branch alone, with no gradient through it."""
    wanted = own.aside(batch)
    return (own.main(batch) - wanted.detach()).square().mean()


def test_a_branch_that_backward_never_reads_is_freed_without_a_replay() -> None:
    """It was kept, as nothing would be restored; so no plan stood lower than all that it saves."""
    torch.manual_seed(0)
    aside, main = (nn.Sequential(*(feed_forward(WIDTH) for _ in range(4))) for _ in range(2))
    model, batch = Told(loss_of, aside=aside, main=main), torch.randn(ROWS, WIDTH)
    profile = autockpt.profile(model, batch)
    unread_bytes = sum(4 * ROWS * each * WIDTH for each in (1, 4, 4) for _ in range(4)) - 4 * ROWS * WIDTH  # the batch
    plan = autockpt.solve(profile, profile.plain_peak_bytes - unread_bytes // 2)
    assert plan.recompute_seconds == 0
    assert {re.split("[.#]", segment.calls[0])[0] for segment in plan.segments} == {"aside"}

    plain = copy.deepcopy(model)
    autockpt.apply(model, plan=plan)
    more, less = autockpt.measure(lambda: plain(batch).backward()), autockpt.measure(lambda: model(batch).backward())
    assert differing(gradients(plain), gradients(model)) == []
    assert more.step_bytes - less.step_bytes == profile.plain_peak_bytes - plan.peak_bytes
