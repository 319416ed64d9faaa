"""What forward saves and no backward reads is freed at no cost."""

from __future__ import annotations

import copy
import re

import torch
from torch import Tensor, nn

import autockpt
from tests.twin import differing, gradients

ROWS, WIDTH = 512, 64


class Aside(nn.Module):
    """Its loss takes the value of one branch alone, with no gradient through it."""

    def __init__(self) -> None:
        super().__init__()
        self.aside, self.main = self._branch(), self._branch()

    @staticmethod
    def _branch() -> nn.Sequential:
        blocks = (nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(4))
        return nn.Sequential(*blocks)

    def forward(self, batch: Tensor) -> Tensor:
        wanted = self.aside(batch)
        loss: Tensor = (self.main(batch) - wanted.detach()).square().mean()
        return loss


def test_a_branch_that_backward_never_reads_is_freed_without_a_replay() -> None:
    """It was kept, as nothing would be restored; so no plan stood lower than all that it saves."""
    torch.manual_seed(0)
    model, batch = Aside(), torch.randn(ROWS, WIDTH)
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
