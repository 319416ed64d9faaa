"""`apply` on models that inductor compiles, on a CPU: plans are held to the code that it generates."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import autockpt
from autockpt import CompiledPlan, Infeasible, NotApplicable
from tests.compiled.models import MODELS, Built
from tests.compiled.steps import static_bytes, trained
from tests.doors import compiled_hold_of

pytestmark = [
    pytest.mark.filterwarnings(
        # Dynamo reads it of what compiled code is given, in plain models too, and hides the warning where it is no
        # error.
        "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning",
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",  # where inductor is loaded first
    ),
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "g++")) is None, reason="inductor needs a C++ compiler on a CPU: g++"
    ),
]

CLOSE = 1.03
"""By so much may a step stand above what the generated code was read to hold."""


class Wide(nn.Module):
    """Two layers with an activation and a dropout; what they save is dear beside the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(16, 256), nn.Linear(256, 16), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outer(self.dropout(nn.functional.gelu(self.inner(x))))
        return y.square().mean()


def wide() -> Built:
    torch.manual_seed(0)
    return Wide(), (torch.randn(256, 16),)


def deep() -> Built:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 16)) for _ in range(3)]
    return Summed(nn.Sequential(*blocks)), (torch.randn(128, 16),)


class Summed(nn.Module):
    """A model whose mean square is the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.model(x)
        return y.square().mean()


BUILDERS = {"wide": wide, **MODELS}


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two gradients differ by no more than rounding does in another order of fusion."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    return bool((one - other).norm() <= 1e-6 * other.norm())


@pytest.mark.sweep  # real kernels are compiled; a day has those of `test_plans.py`, which are read and not compiled
@pytest.mark.parametrize("name", ["wide", *(name for name in MODELS if name not in ("looped", "wide"))])
def test_a_step_that_inductor_compiles_keeps_to_its_budget(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first one too, and no kernel was compiled before the plan was made."""
    torch.compiler.reset()
    model, batch = BUILDERS[name]()
    plain, plain_left = trained(torch.compile(copy.deepcopy(model)), batch)
    static = static_bytes(model, batch)
    for share in (0.8, 0.0):
        torch.compiler.reset()
        compiled: Any = torch.compile(copy.deepcopy(model))
        budget = int(share * plain[-1])
        try:
            autockpt.apply(compiled, static + budget if share else "min", inputs=batch, seconds=1.0)
        except Infeasible as error:
            assert error.minimum_bytes > static + budget
            continue
        plan = autockpt.plan_of(compiled)
        assert isinstance(plan, CompiledPlan) and 1 <= len(plan.tried_bytes) <= 3
        sizes, left = trained(compiled, batch)
        predicted = plan.peak_bytes - static
        assert predicted / CLOSE <= sizes[-1] <= predicted * CLOSE
        assert max(sizes) <= max(plan.tried_bytes[-1] - static, predicted) * CLOSE
        if share:
            assert max(sizes) <= budget * (CLOSE if name == "convolution" else 1)
        assert "no plan knew" not in caplog.text
        assert torch.equal(left[0], plain_left[0])
        assert all(map(alike, left, plain_left))


@pytest.mark.sweep
def test_with_symbolic_sizes_smaller_batches_take_the_code_of_the_largest() -> None:
    """One plan, held to its budget by each batch, and nothing compiles after the first."""
    torch.compiler.reset()
    model, (largest,) = deep()
    batches = [(largest[:rows].clone(),) for rows in (128, 64, 96)]
    plain: Any = torch.compile(copy.deepcopy(model), dynamic=True)
    expected = [trained(plain, batch, 2) for batch in batches]
    torch.compiler.reset()
    static, budget = static_bytes(model, batches[0]), int(0.85 * expected[0][0][-1])
    compiled: Any = torch.compile(model, dynamic=True)
    autockpt.apply(compiled, static + budget, seconds=1.0)
    graphs = set[int]()
    for batch, (plain_sizes, plain_left) in zip(batches, expected, strict=True):
        sizes, left = trained(compiled, batch, 2)
        assert max(sizes) <= budget and sizes[-1] < plain_sizes[-1]
        assert all(alike(one, other) for one, other in zip(left, plain_left, strict=True))
        graphs.add(counters["stats"]["unique_graphs"])
    hold = compiled_hold_of(compiled)
    assert hold is not None and len(graphs) == len(hold.made) == 1


class Masked(nn.Module):
    """Its gradient is its mask: all is one but what dropout sets to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.dropout(x * self.weight, 0.5)
        for _ in range(3):
            y = torch.sin(y) + y
        return y.sum()


@pytest.mark.sweep
def test_masks_of_dropout_are_those_of_the_compiled_plain_step() -> None:
    torch.compiler.reset()
    model, batch = Masked(), (torch.ones(64, 64),)
    _, plain_left = trained(torch.compile(copy.deepcopy(model)), batch)
    torch.compiler.reset()
    compiled: Any = torch.compile(model)
    autockpt.apply(compiled, "min", inputs=batch, seconds=1.0)
    _, left = trained(compiled, batch)
    assert 0.4 < (left[1] == 0).float().mean() < 0.6
    assert torch.equal(left[1] == 0, plain_left[1] == 0)
    assert torch.equal(left[-1], plain_left[-1])


@pytest.mark.sweep
def test_a_batch_that_another_model_made_is_read_through_generated_code() -> None:
    """Its backward went on into a fake that knows no backward, and a generator's critic was refused."""
    torch.compiler.reset()
    model, batch = wide()
    compiled: Any = torch.compile(model)
    autockpt.apply(compiled, "min", inputs=nn.Linear(16, 16)(*batch), seconds=0.1)
    assert autockpt.plan_of(compiled) is not None


CHILD = """
import json, sys, torch, autockpt
from torch._dynamo.utils import counters
from tests.compiled.steps import static_bytes, trained
from tests.compiled.test_inductor import deep
found = []
for budget in ("min", "1GB"):
    torch.compiler.reset()
    counters.clear()
    model, batch = deep()
    compiled = autockpt.apply(torch.compile(model), budget, inputs=batch, seconds=1.0)
    sizes, _ = trained(compiled, batch)
    kept = {name: counters[name][f"{what}_hit"] for name, what in
            (("inductor", "fxgraph_cache"), ("aot_autograd", "autograd_cache"))}
    found.append([sizes[-1], autockpt.plan_of(compiled).peak_bytes - static_bytes(model, batch), sum(kept.values())])
print(json.dumps(found))
"""


@pytest.mark.sweep
def test_two_processes_and_one_cache(tmp_path: Path) -> None:
    """Each budget has its own graphs, and the same plan finds what another process compiled for it."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}

    def run() -> list[list[int]]:
        done = subprocess.run([sys.executable, "-c", CHILD], env=environment, check=True, capture_output=True)
        found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
        return found

    first, second = run(), run()
    assert [hits for *_, hits in first] == [0, 0]
    assert all(hits > 0 for *_, hits in second)
    assert [sizes for *sizes, _ in first] == [sizes for *sizes, _ in second]
    for measured, predicted, _ in second:
        assert predicted / CLOSE <= measured <= predicted * CLOSE
    assert second[0][0] < second[1][0]


def test_without_a_compiler_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = wide()
    compiled: Any = torch.compile(model)
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("there-is-none",))
    with pytest.raises(NotApplicable, match=r"Install the package g\+\+"):
        autockpt.apply(compiled, "1GB")
    assert compiled_hold_of(compiled) is None


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mode": "reduce-overhead"}, "CUDA graphs"),
        ({"options": {"custom_partitioner_fn": object()}}, "custom_partitioner_fn"),
    ],
)
def test_settings_that_no_plan_knows_are_refused(how: Any, words: str) -> None:
    compiled: Any = torch.compile(wide()[0], **how)
    with pytest.raises(NotApplicable, match=words):
        autockpt.apply(compiled, "1GB")
