"""The headlines, each with its source, what is asked for here, and what differs.

Years and figures are those of the publications; where a figure was read in a repository or a pull request, the source
says so. A row that cannot be asked here says why in place of figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.seeds import measured, predicted
from benchmarks.seeds.predicted import Figures

__all__ = ["CLAIMS", "Claim"]

Said = Callable[[Figures], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A published headline, and how it is asked for here.

    Attributes:
        name: short, for the command.
        source: who says it, and where.
        year: of the publication.
        headline: what they say.
        asked: what is asked for here.
        differs: what is not as with them.
        said: puts our figures in words.
        measure: yields predictions, then measurements; None where nothing is measured.
        predict: makes predictions; None where nothing is predicted.
    """

    name: str
    source: str
    year: int
    headline: str
    asked: str
    differs: str
    said: Said
    measure: Callable[[], Iterable[Figures]] | None = None
    predict: Callable[[], Figures] | None = None

    @property
    def measured(self) -> bool:
        """Whether a step runs."""
        return self.measure is not None

    def ask(self) -> Iterable[Figures]:
        """Yield figures as they are found."""
        if self.measure is not None:
            return self.measure()
        return () if self.predict is None else (self.predict(),)

    def row(self, figures: Figures) -> dict[str, Any]:
        """Return the row as it is stored."""
        kind = "measured" if self.measured else "predicted" if self.predict is not None else "not asked"
        own = {key: getattr(self, key) for key in ("name", "source", "year", "headline", "asked", "differs")}
        return own | {"kind": kind, "ours": self.said(figures), "figures": figures}


def _over(value: float | None) -> str:
    """Put an overhead in words."""
    return "not reached" if value is None else f"{100 * value:+.1f} %"


def _at(f: Figures, *percents: int) -> str:
    """Put overheads in words, each with what no method is below."""
    each = (
        f"{_over(f[f'overhead_at_{percent}'])} (no method below {_over(f[f'bound_at_{percent}'])})"
        for percent in percents
    )
    return ", ".join(each)


def _less(share: float) -> str:
    """Put a share in words, as what is gone."""
    return f"−{100 * (1 - share):.0f} %"


def _openai(f: Figures) -> str:
    return (
        f"{f['times']:.0f} times the blocks within what the shallow net's step adds: "
        f"{_over(f['measured_overhead'])} (predicted {_over(f['predicted_overhead'])}), where forward's operators are "
        f"{100 * f['forward_share']:.0f} % of the plain step"
    )


def _speed(f: Figures) -> str:
    ours = f"{_over(f['measured_overhead_ours'])} at {_less(f['measured_share_ours'])}"
    return f"{_less(f['measured_share'])} at {_over(f['measured_overhead'])}; `auto` within that peak {ours}"


def _chen(f: Figures) -> str:
    sqrt = f"their algorithm (`sqrt`) {_over(f['measured_overhead_sqrt'])} at {_less(f['measured_share_sqrt'])}"
    return f"{_less(f['measured_share'])} at {_over(f['measured_overhead'])}; {sqrt}"


def _modes(f: Figures) -> str:
    modes = (
        f"{mode}: {_less(f[f'measured_share_{mode}'])} at {_over(f[f'measured_overhead_{mode}'])}, "
        f"ours {_less(f[f'measured_share_ours_{mode}'])} at {_over(f[f'measured_overhead_ours_{mode}'])}"
        for mode in measured.MODES
        if f"measured_share_{mode}" in f
    )
    return "; ".join(modes)


def _oneflow(f: Figures) -> str:
    every = f"every block {_less(f['every_block_share'])} at {_over(f['every_block_overhead'])}"
    return f"{_at(f, 65)} at −35 % of the peak; {every}"


def _megatron(f: Figures) -> str:
    core = f"their switch {_less(f['core_share'])} at {_over(f['core_overhead'])}"
    ours = f"ours −70 % at {_over(f['overhead_at_30'])}, where no method costs less than {_over(f['bound_at_30'])}"
    every = f"every block {_less(f['every_block_share'])} at {_over(f['every_block_overhead'])}"
    dropout = f"{_less(f['core_share_without_dropout'])} at {_over(f['core_overhead_without_dropout'])} without dropout"
    return f"{core} ({dropout}, {_less(f['core_share_of_four'])} with four blocks); {ours}; {every}"


def _checkmate(f: Figures) -> str:
    return f"plain {f['largest_plain']}, ours {f['largest']}; at 289 images {_over(f['overhead_at_289'])}"


def _rockmate(f: Figures) -> str:
    each = (f"{times} times at {f[f'throughput_{times}']:.2f}" for times in (2, 3, 4) if f[f"throughput_{times}"])
    return "; ".join(each)


def _titan(f: Figures) -> str:
    each = (f"{_over(f[f'faster_{more}'])} with {more} GiB more" for more in ("0.3", "1", "3"))
    most = f"no method above {_over(f['most_3'])}"
    return f"{', '.join(each)} ({most}) than every block, which takes {_over(f['full_overhead'])}"


def _moved(f: Figures) -> str:
    each = (
        f"at −{100 - percent} % {_over(f[f'moved_{percent}'])}, recomputing alone {_over(f[f'alone_{percent}'])}"
        for percent in (80, 60, 50)
    )
    return "; ".join(each)


def _none(_: Figures) -> str:
    return "none"


CLAIMS = (
    Claim(
        name="openai",
        source="Salimans and Bulatov (OpenAI), gradient-checkpointing",
        year=2018,
        headline="ten times the model at +20 % time",
        asked="60 residual blocks within what the step of 6 adds",
        differs="convolutions of 16 channels on one thread of a CPU; theirs: deep ResNets in TensorFlow, on a GPU",
        said=_openai,
        measure=measured.openai,
    ),
    Claim(
        name="openai-speed",
        source="the same, mode `speed`",
        year=2018,
        headline="results of products are kept, all else runs again; no figure",
        asked="the lowest peak of `speed` on a small GPT-2",
        differs="what `speed` leaves of real models, and why, is in the second table",
        said=_speed,
        measure=measured.openai_speed,
    ),
    Claim(
        name="chen",
        source="Chen et al.",
        year=2016,
        headline="48 to 7 GB (−85 %) for a ResNet of 1,000 layers, at +30 % time",
        asked="7/48 of what the step of 60 residual blocks adds",
        differs="120 convolutions; on a CPU backward is less than twice forward, so one more forward is a larger share",
        said=_chen,
        measure=measured.chen,
    ),
    Claim(
        name="oneflow",
        source="OneFlow, documentation of its activation checkpointing, BERT",
        year=2022,
        headline="9141 to 5978 MB (−35 %) at +33 % time",
        asked="65 % of the plain peak, `bert-large`",
        differs="A100's roofline, bfloat16 under autocast, 64 × 512 tokens, no dropout",
        said=_oneflow,
        predict=predicted.oneflow,
    ),
    Claim(
        name="megatron",
        source="Korthikanti et al. (Megatron)",
        year=2022,
        headline="scores alone: −70 % of GPT-3's activations at 2.7 % more FLOPs; overhead 36 % down to 2 to 4 %",
        asked="24 blocks of GPT-3's shape, 30 % of what the step adds",
        differs="seconds of an A100's roofline with nothing fused; theirs are FLOPs, and one kernel scales, masks and "
        "takes the softmax: it needs such a kernel. Without dropout scores are a smaller part of what is saved; of "
        "four blocks the one that is replayed stands at the peak",
        said=_megatron,
        predict=predicted.megatron,
    ),
    Claim(
        name="gpipe",
        source="Huang et al. (GPipe)",
        year=2019,
        headline="82 to 318 million parameters (3.9 times) on one accelerator of 8 GB",
        asked="the most encoder blocks, 1024 wide, 8 × 1024 tokens, in 8 GB",
        differs="AmoebaNet there; single precision, attention in plain operators with dropout, no optimizer",
        said=lambda f: f"{f['layers_plain']} to {f['layers']} blocks at {_over(f['overhead'])}",
        predict=predicted.gpipe,
    ),
    Claim(
        name="torchgpipe",
        source="Kim et al. (torchgpipe), modes `always`, `except_last`, `never`",
        year=2020,
        headline="recompute every micro-batch, all but the last, or none; no figure",
        asked="a small GPT-2 on four micro-batches, one device",
        differs="no pipeline; a partition is the whole model. Ours is asked for their peak with gradients, which is "
        "why it is higher without",
        said=_modes,
        measure=measured.torchgpipe,
    ),
    Claim(
        name="checkmate",
        source="Jain et al. (Checkmate)",
        year=2020,
        headline="VGG-19 on a V100 of 16 GB: 167 images plain, 289 with one more forward at most",
        asked="the largest batch on that V100",
        differs="written anew in PyTorch; V100's roofline",
        said=_checkmate,
        predict=predicted.checkmate,
    ),
    Claim(
        name="monet",
        source="Shah et al. (MONeT), README",
        year=2021,
        headline="ResNet-50, 184 images: 15.06 to 4.99 GB at +12.0 %, to 8.01 GB at +5.6 %",
        asked="the same shares of the peak",
        differs="V100's roofline; theirs have operators of their own, whose backward reads results in place of inputs",
        said=lambda f: _at(f, 33, 53),
        predict=predicted.monet,
    ),
    Claim(
        name="ogc",
        source="Feng and Huang (OGC), README",
        year=2021,
        headline="ResNet-152: −81 % at +37 %",
        asked="19 % of the plain peak",
        differs="V100's roofline",
        said=lambda f: _at(f, 19),
        predict=predicted.ogc,
    ),
    Claim(
        name="rockmate",
        source="Zhao et al. (Rockmate), data of v1.0",
        year=2023,
        headline="GPT-2 large: four times the batch at 0.886 of the throughput",
        asked="GPT-2 XL on 2, 3 and 4 times the batch within the plain peak of one",
        differs="RTX 4090's roofline, bfloat16 with AdamW; 1024 tokens, whose logits stand at the peak",
        said=_rockmate,
        predict=predicted.rockmate,
    ),
    Claim(
        name="hiremate",
        source="Gusak et al. (HiRemate)",
        year=2025,
        headline="−50 to −70 % of activations at +10 to 15 %",
        asked="50, 40 and 30 % of what the step of GPT-2 XL adds",
        differs="RTX 4090's roofline; on a roofline elementwise operators are as dear as their bytes",
        said=lambda f: _at(f, 50, 40, 30),
        predict=predicted.hiremate,
    ),
    Claim(
        name="dtr",
        source="Kirisame et al. (DTR), data file",
        year=2021,
        headline="Transformer: 9.87 to 4.2 GB at +19 %, to 6.19 GB at +14 %",
        asked="the same shares of the peak of torch's encoder",
        differs="V100's roofline, 12 layers with dropout; theirs decides as it runs, on a Titan V",
        said=lambda f: _at(f, 43, 63),
        predict=predicted.dtr,
    ),
    Claim(
        name="titan",
        source="torchtitan, pull request 4636",
        year=2026,
        headline="+5.2 to 5.8 % tokens a second over full recompute, with 0.3 to 3 GiB more",
        asked="`llama-1b` with so much more than where every block is recomputed",
        differs="one A100's roofline, no sharding; the head stands at the peak, where little more can be kept",
        said=_titan,
        predict=predicted.titan,
    ),
    Claim(
        name="deepcompile",
        source="DeepSpeed, pull request 8255 (DeepCompile)",
        year=2026,
        headline="Qwen3-14B on 8 H200: planned offloading 7.38 s a step, offloading all 8.67 s",
        asked="`llama-1b`, part of it on the host at 25 GB/s each way",
        differs="eight ranks with ZeRO-3 cannot be asked here; no copy of ours has run on a GPU; the link is assumed",
        said=_moved,
        predict=predicted.moved,
    ),
    Claim(
        name="unsloth",
        source="unsloth, blog",
        year=2024,
        headline="30 % less memory than with checkpointing, boundaries on the host",
        asked="nothing",
        differs="quantized weights, kernels of their own, and copies of a GPU; ours: `offload=`, which has run on CPUs",
        said=_none,
    ),
    Claim(
        name="axolotl",
        source="axolotl, pull request 3733",
        year=2026,
        headline="Qwen3-8B, 16k tokens, boundaries on the host: 63.3 to 58.9 GB at 0.96 of the speed",
        asked="nothing",
        differs="needs the copies of a GPU; 36 boundaries of 134 MB are 4.8 GB, which is what their figure says",
        said=_none,
    ),
)
"""By subject; those that are measured come last when all are asked."""
