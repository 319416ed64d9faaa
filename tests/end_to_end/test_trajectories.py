"""Twenty steps of training end with the same bits, planned or plain, whatever else the loop does."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import autockpt
from autockpt import Plan, Segment
from tests.end_to_end.reference import counting_replays
from tests.rows import crossed
from tests.zoo import gpt2

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.usefixtures("bfloat16", "deterministic"),
    pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation"),
]

STEPS, MIDDLE = 20, 10
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def language_model() -> nn.Module:
    """GPT-2 with its dropout."""
    torch.manual_seed(0)
    return gpt2(vocab_size=64, n_layer=4, n_embd=32).train()


def image_model() -> nn.Module:
    """ResNet-50's bottlenecks with batch normalisation, fewer and narrow."""
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 16, 32, 32], depths=[2, 3, 3, 2])
    model: nn.Module = transformers.ResNetForImageClassification(config)
    return model.train()


def text(step: int, device: str) -> dict[str, Tensor]:
    ids = torch.arange(64, device=device).mul(step + 3).remainder(61).reshape(4, 16)
    return {"input_ids": ids, "labels": ids}


def images(step: int, device: str) -> dict[str, Tensor]:
    pixels = torch.linspace(-1, 1 + step, 4 * 3 * 32 * 32, device=device).sin().reshape(4, 3, 32, 32)
    return {"pixel_values": pixels, "labels": torch.arange(4, device=device) % 2}


def layers(stage: int, *numbers: int) -> list[str]:
    return [f"resnet.encoder.stages.{stage}.layers.{number}" for number in numbers]


@dataclass(frozen=True)
class Kind:
    build: Callable[[], nn.Module]
    batch: Callable[[int, str], dict[str, Tensor]]
    plan: Plan
    replays: int


def in_part(call: str, *units: str) -> Segment:
    """One call of which some units are kept."""
    return Segment(calls=(f"{call}#0",), keep=tuple(f"{call}.{unit}" for unit in units))


KINDS = {
    "gpt2": Kind(
        language_model,
        text,
        Plan.of([["transformer.h.0", "transformer.h.1"], "transformer.h.2", "transformer.h.3.mlp"]),
        3,
    ),
    "resnet50": Kind(
        image_model,
        images,
        Plan.of([layers(0, 0, 1), layers(1, 1, 2), layers(2, 0, 1, 2), *layers(3, 0, 1)]),
        5,
    ),
    "gpt2 in part": Kind(
        language_model,
        text,
        Plan(
            segments=(
                in_part("transformer.h.0", "attn#0"),
                in_part("transformer.h.1", "attn#0/scaled_dot_product_attention#0", "mlp.c_fc#0"),
                in_part("transformer.h.2", "mlp.dropout#0", "attn.resid_dropout#0"),
            )
        ),
        3,
    ),
    "resnet50 in part": Kind(
        image_model,
        images,
        Plan(
            segments=(
                in_part(*layers(0, 1), "layer.0.normalization#0", "layer.1.convolution#0"),
                in_part(*layers(2, 1), "layer.1#0"),
            )
        ),
        2,
    ),
}


@dataclass
class Loop:
    """One training run; what a test wants different it sets."""

    kind: Kind
    device: str
    planned: bool
    accumulate: int = 1
    autocast: torch.dtype | None = None
    scaled: bool = False
    middle: Callable[[Loop], None] | None = None
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    average: nn.Module | None = None

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.model = self.kind.build().to(self.device)
        if self.planned:
            autockpt.apply(self.model, plan=self.kind.plan)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def loss(self, model: nn.Module, number: int) -> Tensor:
        cast = torch.autocast(self.device, dtype=self.autocast) if self.autocast else contextlib.nullcontext()
        with cast:
            loss: Tensor = model(**self.kind.batch(number, self.device)).loss
        return loss / self.accumulate

    def run(self) -> dict[str, Tensor]:
        """Train; return all that is left at the end."""
        torch.manual_seed(5)
        scaler = torch.amp.GradScaler(self.device, enabled=self.scaled, init_scale=2.0**10, growth_interval=4)
        for step in range(STEPS):
            if step == MIDDLE and self.middle is not None:
                self.middle(self)
            self.optimizer.zero_grad()
            for micro in range(self.accumulate):
                scaler.scale(self.loss(self.model, self.accumulate * step + micro)).backward()
            scaler.step(self.optimizer)
            scaler.update()
            if self.average is not None:
                with torch.no_grad():
                    for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                        mine.lerp_(theirs, 0.1)
        left = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        left["scale"] = torch.tensor(scaler.get_scale())
        left["generator"] = torch.get_rng_state()
        if self.device == "cuda":
            left["generator of the device"] = torch.cuda.get_rng_state()
        if self.average is not None:
            left |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
            self.average.zero_grad()
            self.loss(self.average, 0).backward()
            for name, parameter in self.average.named_parameters():
                assert parameter.grad is not None
                left[f"gradient of average.{name}"] = parameter.grad
        return left


def saved_and_loaded(loop: Loop) -> None:
    """Go on in a new model and a new optimizer, from a file."""
    file = io.BytesIO()
    torch.save([loop.model.state_dict(), loop.optimizer.state_dict()], file)
    file.seek(0)
    random = torch.get_rng_state()
    loop.begin()
    model, optimizer = torch.load(file)
    loop.model.load_state_dict(model)
    loop.optimizer.load_state_dict(optimizer)
    torch.set_rng_state(random)


def averaged(loop: Loop) -> None:
    """Begin an average of the weights: a copy, plan and all, that must run its own."""
    loop.average = copy.deepcopy(loop.model)


WAYS: dict[str, dict[str, object]] = {
    "simply": {},
    "accumulating": {"accumulate": 3},
    "bfloat16": {"autocast": torch.bfloat16},
    "scaled": {"autocast": torch.bfloat16, "scaled": True, "accumulate": 2},
    "saved and loaded": {"middle": saved_and_loaded},
    "averaged": {"middle": averaged},
}


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


@functools.cache
def plainly(
    build: Callable[[], nn.Module], batch: Callable[[int, str], dict[str, Tensor]], way: str, device: str
) -> dict[str, Tensor]:
    """What is left without a plan: the same for all kinds that train one model."""
    kind = Kind(build, batch, Plan(), 0)
    return Loop(kind, device, planned=False, **options_of(way, device)).run()  # type: ignore[arg-type]


def options_of(way: str, device: str) -> dict[str, object]:
    options = dict(WAYS[way])
    if device == "cuda" and way == "scaled":
        options["autocast"] = torch.float16
    return options


@pytest.mark.parametrize("device", DEVICES)
@crossed(name=[*KINDS], way=[*WAYS])
def test_twenty_steps_end_with_the_same_bits(name: str, way: str, device: str) -> None:
    kind, options = KINDS[name], options_of(way, device)
    plain = plainly(kind.build, kind.batch, way, device)
    if device == "cuda" and differences(plain, Loop(kind, device, planned=False, **options).run()):  # type: ignore[arg-type]
        pytest.skip("plain training does not repeat itself on this device")
    with counting_replays() as replays:
        planned = Loop(kind, device, planned=True, **options).run()  # type: ignore[arg-type]
    assert differences(plain, planned) == []
    assert len(replays) == kind.replays * (STEPS * int(options.get("accumulate", 1)) + (way == "averaged"))  # type: ignore[call-overload]
    assert all(value.isfinite().all() for value in planned.values() if value.is_floating_point())


@pytest.mark.parametrize("name", [name for name in KINDS if name.endswith("in part")])
def test_the_units_of_these_plans_are_there(name: str) -> None:
    kind = KINDS[name]
    found = autockpt.verify(kind.build(), kind.batch(0, "cpu"), plan=kind.plan)
    assert (found.verdict, found.not_replayed, found.not_met) == ("exact", (), ())
