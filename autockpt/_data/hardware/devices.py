"""Devices that people own: what their vendors state, and how much of their memory a training can use. No torch.

Rates are of dense products, as in each vendor's data sheet, which `source` names; what a sheet states with sparsity is
halved. Bandwidth is rounded to two or three digits. `total_gib` is what torch sees of the memory (`total_memory`),
without what the driver and error correction keep: the lowest in out-of-memory messages of users that state both. Where
no such message was found it is that of a card with as much memory, which `source` says.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...solvers.errors import AutockptError
from ...solvers.units import parse_bytes, shown

GIB = 2**30

CONTEXT_BYTES = 614 * 2**20
"""What a process holds beside torch's allocator: context, kernels, workspaces of libraries. Messages of users show 0.3
to 0.6 GiB ("including non-PyTorch memory")."""

MARGIN = 0.03
"""Share of a budget that is left to the caching allocator of a device: for blocks that fit nothing, and rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The roofline of a device: dense matrix rate by bytes an element, and memory bandwidth, as its vendor states them.

    Attributes:
        half_flops: FLOP/s of 16-bit floats.
        single_flops: FLOP/s of 32-bit floats (TF32 where the device has it is not assumed).
        bytes_per_second: memory bandwidth.
    """

    half_flops: float
    single_flops: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device as its vendor sells it.

    Attributes:
        title: what its vendor calls it.
        memory: as its vendor states it.
        total_gib: what torch sees of that, in GiB.
        roofline: its rates; None where only its memory is known.
        source: where memory and rates are from, and as what they stand there.
        bfloat16: whether its matrix units know it; without, the rate of 16-bit floats is that of float16.
    """

    title: str
    memory: str
    total_gib: float
    roofline: Roofline | None
    source: str
    bfloat16: bool = True

    @property
    def total_bytes(self) -> int:
        """What torch sees of its memory."""
        return int(self.total_gib * GIB)

    @property
    def budget_bytes(self) -> int:
        """What a training may be given, of which `apply` leaves the allocator its margin: all but the context."""
        return self.total_bytes - CONTEXT_BYTES

    @property
    def usable_bytes(self) -> int:
        """What a step may hold: without the context, and without the allocator's margin."""
        return int((1 - MARGIN) * self.budget_bytes)


def _gpu(
    title: str,
    memory: str,
    *,
    total_gib: float,
    half: float,
    single: float,
    bandwidth: float,
    source: str,
    bfloat16: bool = True,
) -> Gpu:
    """Return a device; rates in TFLOP/s, bandwidth in GB/s."""
    rates = Roofline(half_flops=half * 1e12, single_flops=single * 1e12, bytes_per_second=bandwidth * 1e9)
    return Gpu(title=title, memory=memory, total_gib=total_gib, roofline=rates, source=source, bfloat16=bfloat16)


DEVICES: Mapping[str, Gpu] = {
    "t4": _gpu(
        "NVIDIA T4",
        "16 GB GDDR6",
        total_gib=14.74,
        half=65,
        single=8.1,
        bandwidth=320,
        source="NVIDIA T4 data sheet: mixed precision 65, FP32 8.1 TFLOPS, 320+ GB/s",
        bfloat16=False,
    ),
    "v100-16gb": _gpu(
        "NVIDIA V100 SXM2 16 GB",
        "16 GB HBM2",
        total_gib=15.77,
        half=125,
        single=15.7,
        bandwidth=900,
        source="NVIDIA V100 data sheet, SXM2: tensor 125, FP32 15.7 TFLOPS, 900 GB/s",
        bfloat16=False,
    ),
    "v100-32gb": _gpu(
        "NVIDIA V100 SXM2 32 GB",
        "32 GB HBM2",
        total_gib=31.73,
        half=125,
        single=15.7,
        bandwidth=900,
        source="NVIDIA V100 data sheet, SXM2: tensor 125, FP32 15.7 TFLOPS, 900 GB/s",
        bfloat16=False,
    ),
    "a10": _gpu(
        "NVIDIA A10",
        "24 GB GDDR6",
        total_gib=22.06,
        half=125,
        single=31.2,
        bandwidth=600,
        source="NVIDIA A10 data sheet: FP16 tensor 125, FP32 31.2 TFLOPS, 600 GB/s",
    ),
    "l4": _gpu(
        "NVIDIA L4",
        "24 GB GDDR6",
        total_gib=22.03,
        half=121,
        single=30.3,
        bandwidth=300,
        source="NVIDIA L4 data sheet: FP16 tensor 242 with sparsity, FP32 30.3 TFLOPS, 300 GB/s",
    ),
    "l40s": _gpu(
        "NVIDIA L40S",
        "48 GB GDDR6",
        total_gib=44.39,
        half=362,
        single=91.6,
        bandwidth=864,
        source="NVIDIA L40S data sheet: FP16 tensor 362.05, FP32 91.6 TFLOPS, 864 GB/s",
    ),
    "rtx3060": _gpu(
        "NVIDIA GeForce RTX 3060",
        "12 GB GDDR6",
        total_gib=11.75,
        half=25.5,
        single=12.7,
        bandwidth=360,
        source="NVIDIA GeForce RTX 3060 page: tensor 101 with sparsity, with FP32 accumulate half, 13 TFLOPS; 360 GB/s",
    ),
    "rtx3080": _gpu(
        "NVIDIA GeForce RTX 3080",
        "10 GB GDDR6X",
        total_gib=9.78,
        half=59.5,
        single=29.8,
        bandwidth=760,
        source="NVIDIA GA102 whitepaper: FP16 tensor with FP32 accumulate 59.5, FP32 29.8 TFLOPS, 760 GB/s",
    ),
    "rtx3090": _gpu(
        "NVIDIA GeForce RTX 3090",
        "24 GB GDDR6X",
        total_gib=23.5,
        half=71,
        single=35.6,
        bandwidth=936,
        source="NVIDIA GA102 whitepaper: FP16 tensor with FP32 accumulate 71, FP32 35.6 TFLOPS, 936 GB/s",
    ),
    "rtx4070": _gpu(
        "NVIDIA GeForce RTX 4070",
        "12 GB GDDR6X",
        total_gib=11.75,
        half=58.3,
        single=29.1,
        bandwidth=504,
        source="NVIDIA GeForce RTX 4070 page: 466 AI TOPS (FP8 with sparsity), FP32 29, 504 GB/s; memory as RTX 3060",
    ),
    "rtx4080": _gpu(
        "NVIDIA GeForce RTX 4080",
        "16 GB GDDR6X",
        total_gib=15.61,
        half=97.5,
        single=48.7,
        bandwidth=717,
        source="NVIDIA Ada whitepaper: FP16 tensor, FP32 accumulate 97.5; FP32 48.7; 717 GB/s; memory as RTX A4000",
    ),
    "rtx4090": _gpu(
        "NVIDIA GeForce RTX 4090",
        "24 GB GDDR6X",
        total_gib=23.5,
        half=165,
        single=82.6,
        bandwidth=1000,
        source="NVIDIA Ada whitepaper: FP16 tensor with FP32 accumulate 165.2, FP32 82.6 TFLOPS, 1008 GB/s",
    ),
    "rtx5090": _gpu(
        "NVIDIA GeForce RTX 5090",
        "32 GB GDDR7",
        total_gib=31.36,
        half=209,
        single=105,
        bandwidth=1790,
        source="NVIDIA RTX Blackwell whitepaper: FP16 tensor with FP32 accumulate 209.5, FP32 104.8 TFLOPS, 1792 GB/s",
    ),
    "a5000": _gpu(
        "NVIDIA RTX A5000",
        "24 GB GDDR6",
        total_gib=22.06,
        half=111,
        single=27.8,
        bandwidth=768,
        source="NVIDIA RTX A5000 data sheet: tensor 222.2 with sparsity, FP32 27.8 TFLOPS, 768 GB/s; memory as an A10",
    ),
    "a6000": _gpu(
        "NVIDIA RTX A6000",
        "48 GB GDDR6",
        total_gib=44.39,
        half=155,
        single=38.7,
        bandwidth=768,
        source="NVIDIA RTX A6000 data sheet: tensor 309.7 with sparsity, FP32 38.7 TFLOPS, 768 GB/s; memory as an L40S",
    ),
    "rtx6000-ada": _gpu(
        "NVIDIA RTX 6000 Ada Generation",
        "48 GB GDDR6",
        total_gib=44.43,
        half=364,
        single=91.1,
        bandwidth=960,
        source="NVIDIA RTX 6000 Ada data sheet: FP8 tensor 1457 with sparsity, FP32 91.1 TFLOPS, 960 GB/s",
    ),
    "rtx-pro-6000": _gpu(
        "NVIDIA RTX PRO 6000 Blackwell",
        "96 GB GDDR7",
        total_gib=94.97,
        half=500,
        single=125,
        bandwidth=1790,
        source="NVIDIA RTX PRO 6000 Blackwell data sheet: 4000 AI TOPS (FP4 with sparsity), FP32 125 TFLOPS, 1792 GB/s",
    ),
    "a100-40gb": _gpu(
        "NVIDIA A100 40 GB",
        "40 GB HBM2",
        total_gib=39.38,
        half=312,
        single=19.5,
        bandwidth=1555,
        source="NVIDIA A100 data sheet, 40 GB: FP16 tensor 312, FP32 19.5 TFLOPS, 1555 GB/s",
    ),
    "a100-80gb": _gpu(
        "NVIDIA A100 80 GB",
        "80 GB HBM2e",
        total_gib=79.14,
        half=312,
        single=19.5,
        bandwidth=2000,
        source="NVIDIA A100 data sheet, 80 GB: FP16 tensor 312, FP32 19.5 TFLOPS, 1935 (PCIe) and 2039 GB/s (SXM)",
    ),
    "h100": _gpu(
        "NVIDIA H100 SXM",
        "80 GB HBM3",
        total_gib=79.1,
        half=989,
        single=67,
        bandwidth=3350,
        source="NVIDIA H100 data sheet, SXM: FP16 tensor 1979 with sparsity, FP32 67 TFLOPS, 3.35 TB/s",
    ),
    "h200": _gpu(
        "NVIDIA H200 SXM",
        "141 GB HBM3e",
        total_gib=139.72,
        half=989,
        single=67,
        bandwidth=4800,
        source="NVIDIA H200 data sheet, SXM: FP16 tensor 1979 with sparsity, FP32 67 TFLOPS, 4.8 TB/s",
    ),
    "b200": _gpu(
        "NVIDIA B200",
        "180 GB HBM3e",
        total_gib=178.35,
        half=2250,
        single=75,
        bandwidth=7700,
        source="NVIDIA HGX B200 data sheet, of eight: FP16 tensor 36 PFLOPS with sparsity, FP32 600 TFLOPS; 7.7 TB/s",
    ),
    "mi300x": _gpu(
        "AMD Instinct MI300X",
        "192 GB HBM3",
        total_gib=191.69,
        half=1307,
        single=163,
        bandwidth=5300,
        source="AMD Instinct MI300X data sheet: FP16 matrix 1307.4, FP32 163.4 TFLOPS, 5.3 TB/s",
    ),
}
"""Each device by its name."""

ALSO: Mapping[str, str] = {"a100": "a100-80gb", "v100": "v100-16gb"}
"""Names that say too little, and what they stand for; profiles have them."""


class UnknownDevice(AutockptError):
    """A device of which nothing is known."""


def named(name: str) -> str:
    """Return the name in `DEVICES` of what somebody calls a device: ``RTX 4090``, ``4090``, ``A100 (80GB)``.

    Raises:
        UnknownDevice: there is none; says which are near, by memory where the name has an amount.
    """
    wanted = _bare(name)
    known = {_bare(each): each for each in DEVICES} | {_bare(each): full for each, full in ALSO.items()}
    known |= {_bare(gpu.title): each for each, gpu in DEVICES.items()}
    known |= {bare.removeprefix("rtx"): each for bare, each in known.items()}
    if wanted in known:
        return known[wanted]
    near = dict.fromkeys(known[each] for each in difflib.get_close_matches(wanted, known, n=3, cutoff=0.5))
    amount = re.search(r"(?<![0-9])([0-9]{1,4}) ?gi?b", name, re.IGNORECASE | re.ASCII)
    if amount is not None:
        near = dict.fromkeys(_nearest(int(amount[1])))
    elif re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", name.strip()):  # an amount without its unit; names have four digits
        near = {f"{name.strip()}GB": None}
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UnknownDevice(
        f"no device is known as {shown(name)}; {hint}An amount, such as 12GB, is memory alone. There are "
        f"{', '.join(DEVICES)}"
    )


def devices_named(words: Iterable[str]) -> list[str]:
    """Return the names of devices, each once, of words with commas between names or amounts; all for no word.

    Raises:
        UnknownDevice: nothing is known of one.
        BudgetError: an amount is none.
    """
    names = [each.strip() for word in words for each in word.split(",") if each.strip()]
    return list(dict.fromkeys(each for name in names for each in of_memory(name) or [named(name)])) or list(DEVICES)


def of_memory(text: str) -> list[str]:
    """Return the names in `DEVICES` of what has so much memory, as its vendor states it: ``24GB``, ``80 gib``.

    Where none has, the amount itself is a name for `gpu_of`. Empty where this is no amount of memory.

    Raises:
        UnknownDevice: the amount leaves nothing for a model.
    """
    amount = re.fullmatch(r"\s*([0-9]{1,4}(?:\.[0-9]{1,3})?)\s*(gi?b)\s*", text, re.IGNORECASE | re.ASCII)
    if amount is None:
        return []
    found = [name for name, gpu in DEVICES.items() if gpu.memory.startswith(f"{amount[1]} GB ")]
    alone = f"{amount[1]}{amount[2].upper().replace('I', 'i')}"
    if not found and gpu_of(alone).usable_bytes <= 0:
        needs = f"{CONTEXT_BYTES // 2**20} MiB are the CUDA context's"
        raise UnknownDevice(f"{text.strip()} of memory holds no model: {needs}. The least that helps is 1GB")
    return found or [alone]


def gpu_of(name: str) -> Gpu:
    """Return a device by its name in `DEVICES`, or what an amount such as ``12GB`` stands for: memory without rates."""
    if name in DEVICES:
        return DEVICES[name]
    total_bytes = parse_bytes(name)
    return Gpu(title=name, memory=name, total_gib=total_bytes / GIB, roofline=None, source="memory alone, as asked")


def _nearest(gib: int) -> list[str]:
    """Return the names of the devices whose memory is nearest to an amount, at most three."""
    sizes = {name: int(gpu.memory.partition(" ")[0]) for name, gpu in DEVICES.items()}
    return sorted(sizes, key=lambda name: abs(sizes[name] - gib))[:3]


def _bare(name: str) -> str:
    """Return a name without makers, families and what stands between letters."""
    makers = r"nvidia|geforce|amd|instinct|tesla|generation|blackwell|workstation|edition|sxm\d?"
    return re.sub(rf"{makers}|[^a-z0-9]", "", name.lower())
