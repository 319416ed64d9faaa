"""Stage 3: attention's kernels, cuDNN's choice of its own, and streams: does a replay repeat what forward did?

No flag asks for deterministic kernels here: that would fill memory which kernels leave as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

import autockpt
from autockpt import Plan
from benchmarks.frontier.blocks import find_blocks
from benchmarks.gpu.models import gpt2
from benchmarks.gpu.road import drive
from benchmarks.gpu.rows import Figures, Job, NotHere
from benchmarks.gpu.steps import Setting, Subject, verdict
from benchmarks.gpu.watch import listening

__all__ = ["rows"]

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
OPERATORS = {
    SDPBackend.FLASH_ATTENTION: "_scaled_dot_product_flash",
    SDPBackend.EFFICIENT_ATTENTION: "_scaled_dot_product_efficient",
    SDPBackend.CUDNN_ATTENTION: "_scaled_dot_product_cudnn",
    SDPBackend.MATH: "",
}
"""What forward calls then; nothing of the kind where plain operators do it."""

LENGTHS = {"full": (1024, 1000), "tiny": (29,)}
"""The last is no multiple of 32, to which kernels pad what they save."""

DROPOUTS = (0.0, 0.1)
STEPS = 3


def rows(setting: Setting, folder: Path) -> list[Job]:
    """Return the rows: attention, cuDNN, streams."""
    attention = [
        Job(
            name=f"attention: {kernel}, length {length}, dropout {dropout}",
            run=partial(_attention, KERNELS[kernel], length, dropout, setting),
            process="attention",
        )
        for kernel in KERNELS
        for length in LENGTHS[setting.size]
        for dropout in DROPOUTS
    ]
    benchmark = partial(torch.backends.cudnn.flags, enabled=True, benchmark=True, deterministic=False)
    chosen = partial(drive, "resnet-50", setting, share=0.5, around=benchmark)
    return [
        *attention,
        Job(name="streams", run=partial(_streams, setting), process="attention"),
        Job(name="resnet-50: cudnn.benchmark", run=chosen, process="cuDNN"),
    ]


def _attention(kernel: SDPBackend, length: int, dropout: float, setting: Setting) -> Iterator[Figures]:
    """Recompute every block under one kernel of attention, with each replay compared; count what is warned of."""
    yield "predicted", {"warnings": 0, "verdict": "exact"}
    of = _transformer(length, dropout, setting)
    name_of = {module: name for name, module in of.model.named_modules()}
    blocks = [name_of[block] for blocks in find_blocks(of.model) for block in blocks]
    plan = Plan.of(blocks)
    with sdpa_kernel(kernel):
        _refuse_other(kernel, of)
        with listening() as told:
            autockpt.apply(of.model, plan=plan, check="always")
            for _ in range(STEPS):
                of.step()
            autockpt.remove(of.model)
        yield "measured", {"warnings": len(told.warnings), "log": told.lines, "recomputed": len(blocks)}
        yield "measured", dict(verdict(of, plan))


def _refuse_other(kernel: SDPBackend, of: Subject) -> None:
    """Take a step.

    Raises:
        NotHere: torch has no such kernel for it, or takes another.
    """
    with _Operators() as ran:
        try:
            of.step()
        except RuntimeError as error:
            if "kernel" not in str(error).lower():
                raise
            raise NotHere(" ".join(str(error).split())[:200]) from error
    found = sorted({name for name in ran.names if "scaled_dot_product" in name})
    wanted = OPERATORS[kernel]
    if not any(wanted in name for name in found) if wanted else found:
        raise NotHere(f"torch takes {', '.join(found) or 'plain operators'} here")


class _Operators(TorchDispatchMode):
    """Notes which operators run in this thread: those of forward."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **kwargs or {})


def _transformer(length: int, dropout: float, setting: Setting) -> Subject:
    """Build a GPT-2 in bfloat16 that drops out nothing but in its attention."""
    sizes = (4, 768, 12, 4) if setting.size == "full" else (2, 32, 2, 2)
    torch.manual_seed(0)
    with torch.device(setting.device):
        model, batch = gpt2(*sizes, length, 1000, attn_pdrop=dropout, resid_pdrop=0.0, embd_pdrop=0.0)
    model = model.to(torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return Subject(model=model, batch=batch, optimizer=optimizer, device=setting.device)


def _streams(setting: Setting) -> Iterator[Figures]:
    """Run forward on a stream of the user's, and backward outside of it: where do replays run?"""
    if setting.device.type != "cuda":
        raise NotHere("a CPU has no streams")
    yield "predicted", {"replays on forward's stream": True, "verdict": "exact"}
    runs: list[tuple[bool, int]] = []
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()) for _ in range(4)]
    model = nn.Sequential(*blocks).to(setting.device)

    def note(module: nn.Module, args: object) -> None:
        stream: Any = torch.cuda.current_stream()
        runs.append((autockpt.is_recomputing(), stream.cuda_stream))

    for block in blocks:
        block[0].register_forward_pre_hook(note)
    batch = torch.randn(64, 256, device=setting.device)
    side = torch.cuda.Stream(setting.device)

    def step() -> list[torch.Tensor]:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = model(batch).square().mean()
        torch.cuda.current_stream().wait_stream(side)
        loss.backward()
        torch.cuda.synchronize(setting.device)
        found = [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        return found

    plain = step()
    runs.clear()
    autockpt.apply(model, plan=Plan.of([str(number) for number in range(4)]))
    for _ in range(STEPS):
        found = step()
    autockpt.remove(model)
    forward = {stream for replay, stream in runs if not replay}
    replays = {stream for replay, stream in runs if replay}
    same = len(found) == len(plain) and all(map(torch.equal, plain, found))
    yield (
        "measured",
        {
            "replays on forward's stream": replays == forward,
            "forward streams": len(forward),
            "replay streams": len(replays),
            "default stream": torch.cuda.default_stream(setting.device).cuda_stream in replays,
            "recomputed": sum(replay for replay, _ in runs),
            "verdict": "exact" if same else "differs",
        },
    )
