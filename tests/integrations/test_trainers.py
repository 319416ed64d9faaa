"""Real trainers with a callback: losses, gradient norms and weights as without it, peaks where they log.

They are no part of what development installs: `pip install --constraint constraints.txt accelerate lightning peft trl`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autockpt
from tests.loops.test_frameworks import STEPS, language_model, sentences, stacked, texts, tokenizer

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]

ARGUMENTS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 8,
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
}

FIGURES = {"autockpt/budget_bytes", "autockpt/peak_bytes", "autockpt/overhead"}


def of_transformers(tmp_path: Path, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), **{**ARGUMENTS, **more})
    rows = texts(8 * STEPS * more.get("gradient_accumulation_steps", 1))
    return transformers.Trainer(model=language_model(), args=arguments, train_dataset=rows, data_collator=stacked)


def of_trl(tmp_path: Path) -> Any:
    trl, datasets, peft = map(pytest.importorskip, ("trl", "datasets", "peft"))
    torch.manual_seed(0)
    model = peft.get_peft_model(
        language_model(), peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    )
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), bf16=False, max_length=64, activation_checkpointing=False, **ARGUMENTS
    )
    rows = datasets.Dataset.from_dict({"text": sentences(8 * STEPS, 0, 64)})
    return trl.SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer())


TRAINERS: dict[str, Callable[[Path], Any]] = {
    "transformers": of_transformers,
    "transformers, accumulating": lambda path: of_transformers(path, gradient_accumulation_steps=2),
    "trl with LoRA": of_trl,
}


def history(trainer: Any) -> list[tuple[Any, Any]]:
    return [(each["loss"], each["grad_norm"]) for each in trainer.state.log_history if "loss" in each]


def same_weights(one: nn.Module, two: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), two.state_dict().items(), strict=True)
    return all(mine[0] == theirs[0] and torch.equal(mine[1], theirs[1]) for mine, theirs in pairs)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_with_the_callback(name: str, tmp_path: Path) -> None:
    plain = TRAINERS[name](tmp_path)
    from autockpt.integrations.transformers import TrainerBudget
    from tests.integrations.test_held import Records

    plain.train()
    trainer, written = TRAINERS[name](tmp_path), Records()
    trainer.add_callback(written)
    TrainerBudget(max_overhead=0.3).add_to(trainer).train()
    assert len(history(plain)) == STEPS and history(trainer) == history(plain)
    assert same_weights(trainer.model, plain.model)
    assert written.records[-2].keys() | written.records[-1].keys() >= FIGURES
    assert any(each.keys() >= FIGURES for each in trainer.state.log_history)
    assert autockpt.plan_of(trainer.model) is None


def test_tensorboard_has_the_peaks(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from autockpt.integrations.transformers import TrainerBudget

    trainer = of_transformers(tmp_path, report_to=["tensorboard"])
    TrainerBudget(max_overhead=0.3).add_to(trainer).train()
    found = {
        tag
        for path in tmp_path.rglob("events.*")
        for tag in EventAccumulator(str(path)).Reload().Tags()["scalars"]
        if "autockpt" in tag
    }
    assert {f"train/{name}" for name in FIGURES} <= found


def lightning_module() -> Any:
    base: Any = pytest.importorskip("lightning").LightningModule

    class Module(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.metric = language_model(), nn.Identity()
            self.losses: list[Tensor] = []

        def training_step(self, batch: Any, number: int) -> Tensor:
            loss: Tensor = self.model(**batch).loss
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    torch.manual_seed(0)
    return Module()


def fit(module: Any, tmp_path: Path, callbacks: list[Any]) -> dict[str, list[str]]:
    """Train, and return what the logger has written, by column."""
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(str(tmp_path), flush_logs_every_n_steps=1)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        log_every_n_steps=1,
        callbacks=callbacks,
    )
    rows = texts(8 * STEPS)
    batches = [stacked(rows[first : first + 8]) for first in range(0, len(rows), 8)]
    torch.manual_seed(1)
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    files = list(Path(logger.log_dir).glob("metrics.csv"))
    lines = files[0].read_text().splitlines() if files else [""]
    return {name: [line.split(",")[at] for line in lines[1:]] for at, name in enumerate(lines[0].split(","))}


@pytest.mark.parametrize("chosen", [None, ["model"], ["model.transformer", "model.lm_head"]])
def test_lightning_with_the_callback(chosen: list[str] | None, tmp_path: Path) -> None:
    plain, module = lightning_module(), lightning_module()
    from autockpt.integrations.lightning import LightningBudget

    fit(plain, tmp_path / "plain", [])
    written = fit(module, tmp_path / "planned", [LightningBudget(max_overhead=0.3, modules=chosen)])
    assert len(plain.losses) == STEPS and torch.equal(torch.stack(plain.losses), torch.stack(module.losses))
    assert same_weights(module, plain)
    assert written.keys() >= FIGURES and float(written["autockpt/peak_bytes"][-1]) > 0
    assert autockpt.plan_of(module.model) is None


@pytest.mark.parametrize("chosen", [["mdoel"], [], [""]])
def test_a_module_that_lightning_does_not_have(chosen: list[str], tmp_path: Path) -> None:
    module = lightning_module()
    from autockpt.integrations.lightning import LightningBudget

    with pytest.raises(autockpt.NotApplicable, match=r"has no module.*its children are model, metric"):
        fit(module, tmp_path, [LightningBudget("1GB", modules=chosen)])


def test_a_lightning_module_without_modules(tmp_path: Path) -> None:
    base: Any = pytest.importorskip("lightning").LightningModule
    from autockpt.integrations.lightning import trained

    class Bare(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    with pytest.raises(autockpt.NotApplicable, match="into a module of its own"):
        trained(Bare(), None)
