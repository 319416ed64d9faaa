"""A model that recomputes parts itself, with `torch.utils.checkpoint`: said wherever figures count with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import autockpt

WIDTH = 16
BATCH = torch.randn(32, 16, WIDTH, generator=torch.Generator().manual_seed(0))
SAID = "with torch.utils.checkpoint in the forward of"


class Mlp(nn.Module):
    """A block; it may call `torch.utils.checkpoint` itself, on functions alone."""

    def __init__(self, *, inside: bool = False) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.inside = inside

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        up = self.up(self.norm(hidden))
        act: Any = checkpoint(torch.nn.functional.gelu, up, use_reentrant=False) if self.inside else up.relu()
        out: torch.Tensor = hidden + self.down(act)
        return out


class Tower(nn.Module):
    """Blocks behind a switch of the model around them, as vision towers have it."""

    def __init__(self, *, reentrant: bool = False, inside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.blocks = nn.Sequential(*(Mlp(inside=inside) for _ in range(4)))
        self.grad_checkpointing, self.reentrant = False, reentrant

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(hidden)
        for block in self.blocks:
            own = self.grad_checkpointing
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant) if own else block(hidden)
        out: torch.Tensor = self.head(hidden.mean(1))
        return out


class Configured(nn.Module):
    """The switch lies on a configuration, and the model around is another one."""

    def __init__(self, config: object) -> None:
        super().__init__()
        self.tower = Tower()
        self.tower.config = config  # type: ignore[assignment]
        self.head = nn.Linear(4, 4)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.tower.grad_checkpointing = True
        try:
            out: torch.Tensor = self.head(self.tower(hidden))
            return out
        finally:
            self.tower.grad_checkpointing = False


class Config:
    def __init__(self) -> None:
        self.use_checkpoint = True


def tower(**settings: Any) -> Tower:
    made = Tower(**settings)
    made.set_grad_checkpointing()
    return made


def trained(model: nn.Module, budget: str) -> nn.Module:
    autockpt.apply(model, budget)
    for _ in range(4):
        model.zero_grad()
        model(BATCH).square().mean().backward()
    return model


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if SAID in record.getMessage()]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_plan_beside_them_says_so(reentrant: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It said that nothing is recomputed, at an overhead of 0.0 %, while every block ran twice."""
    caplog.set_level("INFO", "autockpt")
    held = trained(tower(reentrant=reentrant), "lowest")
    (said,) = warned(caplog)
    assert said.startswith("the model recomputes blocks.0 … blocks.3 (4 modules) itself, with torch.utils.checkpoint ")
    assert "in the forward of the model. " in said and "set grad_checkpointing = False on the model" in said
    plan: Any = autockpt.plan_of(held)
    assert plan.own_replays == said and said in plan.notes
    assert said in " ".join(autockpt.report(held).explain().split())
    assert "beside what the model recomputes itself" in " ".join(autockpt.report(held).explain().split())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_budget_that_would_hold_without_them_is_refused_with_the_way_out(reentrant: bool) -> None:
    on, off = tower(reentrant=reentrant), Tower()
    lowest = autockpt.plan_of(trained(off, "lowest")).peak_bytes  # type: ignore[union-attr]
    with pytest.raises(autockpt.Infeasible) as refused:
        trained(on, f"{lowest} B")
    first, second, *_ = str(refused.value).splitlines()
    assert "while the model recomputes parts itself" in first
    assert "blocks.0 … blocks.3" in second and "set grad_checkpointing = False on the model" in second
    on.set_grad_checkpointing(False)  # what it says
    assert autockpt.plan_of(trained(on, f"{lowest} B"))


def test_nothing_is_said_of_a_model_that_does_not(caplog: pytest.LogCaptureFixture) -> None:
    plan: Any = autockpt.plan_of(trained(Tower(), "lowest"))
    assert plan.own_replays is None and not warned(caplog)


def test_profile_says_it_and_so_do_the_files(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    profile = autockpt.profile(tower(reentrant=True), BATCH)
    assert profile.own_replays in profile.notes and warned(caplog) == [profile.own_replays]
    fake = autockpt.profile(tower(reentrant=True), BATCH, mode="fake")
    assert fake.own_replays == profile.own_replays
    profile.save(tmp_path / "profile.json")
    plan = autockpt.solve(autockpt.Profile.load(tmp_path / "profile.json"), "lowest")
    assert plan.own_replays == profile.own_replays
    autockpt.profile(Tower(), BATCH).save(tmp_path / "plain.json")
    assert "own_replays" not in (tmp_path / "plain.json").read_text()  # older versions read it


def test_functions_alone_are_said_by_the_forward_that_gives_them(caplog: pytest.LogCaptureFixture) -> None:
    """There is no attribute that switches it off, so the call itself is named."""
    trained(Tower(inside=True), "lowest")
    (said,) = warned(caplog)
    assert "recomputes part of blocks.0 … blocks.3 (4 modules) itself" in said
    assert "take the call out." in said


@pytest.mark.parametrize(("config", "switch"), [(Config(), "config.use_checkpoint"), ({"ckpt": True}, "config.ckpt")])
def test_a_switch_on_a_configuration_is_found(config: object, switch: str, caplog: pytest.LogCaptureFixture) -> None:
    trained(Configured(config), "lowest")
    (said,) = warned(caplog)
    assert "in the forward of tower. " in said and f"set {switch} = False on tower, where it is True" in said


def test_functions_under_recompute_are_named_and_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """They are asked for. Beside torch's own there are two sentences, and one warning."""

    class Asks(Mlp):
        @autockpt.recompute
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden)

    asking = nn.Sequential(Asks(), nn.Linear(WIDTH, WIDTH), Asks())
    plan: Any = autockpt.plan_of(trained(asking, "lowest"))
    assert plan.own_replays.startswith("the model recomputes ") and "Asks.forward itself" in plan.own_replays
    assert "with autockpt.recompute in the forward of 0 and 2. " in plan.own_replays and not caplog.messages
    autockpt.remove(asking)
    profile = autockpt.profile(asking, BATCH)
    assert profile.own_replays == plan.own_replays and plan.own_replays in profile.notes
    both: Any = autockpt.plan_of(trained(nn.Sequential(asking, *tower().blocks, Mlp(inside=True)), "lowest"))
    assert "Asks.forward itself" in both.own_replays and SAID in both.own_replays and len(warned(caplog)) == 1


def test_a_planned_model_under_recompute_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = Tower()
    autockpt.apply(model, "lowest")
    for _ in range(3):
        autockpt.recompute(model)(BATCH).square().mean().backward()
    assert any("trains under autockpt.recompute, which recomputes all of it" in each for each in caplog.messages)
