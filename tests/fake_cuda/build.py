"""Compiles the device, once for its source and torch's version."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).with_name("device")
MAIN = SOURCES / "fake_cuda.cpp"


class NoFakeDevice(Exception):
    """It cannot be had here: torch has CUDA itself, or there is no compiler. Says which."""


def built_library() -> Path:
    """Return the library, built if it was not yet.

    Returns:
        A file in ``build/``, or in the folder that ``FAKE_CUDA_CACHE`` names.

    Raises:
        NoFakeDevice: torch has CUDA, or there is no compiler.
        RuntimeError: The compiler refuses the source.
    """
    import torch

    if torch.version.cuda or torch.version.hip:
        raise NoFakeDevice(
            f"torch {torch.__version__} was built with CUDA, and a device can only be added to one without"
        )
    cache = Path(os.environ.get("FAKE_CUDA_CACHE") or Path(__file__).parents[2] / "build")
    built = cache / f"fake_cuda-{_key(torch.__version__)}.so"
    if built.exists():
        return built
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if not compiler:
        raise NoFakeDevice("there is no C++ compiler (CXX, g++ or c++) to build it with")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fake_cuda.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of one run build it once
        if not built.exists():
            _compile(compiler, Path(torch.__file__).parent, built)
    return built


def _key(version: str) -> str:
    """Return a name for what the library is made of."""
    digest = hashlib.sha256(version.encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, torch_root: Path, built: Path) -> None:
    libraries = torch_root / "lib"
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / built.name
        command = [compiler, "-std=c++20", "-O1", "-w", "-fPIC", "-shared", f"-I{torch_root / 'include'}", str(MAIN)]
        command += ["-o", str(made), f"-L{libraries}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{compiler} refuses the fake CUDA device:\n{done.stderr[-4000:]}")
        made.rename(built)  # in one go: nobody loads half of it
