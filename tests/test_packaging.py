"""What is shipped: a wheel made from the sdist, opened, and run where there is no torch."""

from __future__ import annotations

import ensurepip
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from autockpt import Plan

from .handmade import chain_profile

ROOT = Path(__file__).parent.parent


def test_links_lead_to_the_folders_that_are_packaged() -> None:
    for name in ("solvers", "profiles"):
        link = ROOT / "autockpt" / name
        if link.is_symlink():  # a checkout without links has a text file, and works too
            assert link.resolve() == ROOT / name


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist of a clean copy, and from it the wheel, without network."""
    source, target = tmp_path_factory.mktemp("source") / "autockpt", tmp_path_factory.mktemp("built")
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=unwanted)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source)
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, and beside it only what it says it needs, torch left out; return the environment."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (pip,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")  # runs as it is: to install it takes longer
    _run(folder / "bin" / "python", pip / "pip", "install", "--no-index", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (installed,) = packages.glob("autockpt-*.dist-info")
    requirements = [Requirement(line) for line in Distribution.at(installed).requires or ()]
    needed = {each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})}
    assert needed == {"click", "highspy", "msgspec", "numpy", "pulp", "torch"}
    for name in needed - {"torch"}:
        _link(name, packages)
    return folder


def test_the_wheel_holds_every_module_and_nothing_else_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {
        "autockpt",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    modules = {path.relative_to(ROOT) for path in (ROOT / "autockpt").rglob("*.py")}
    for mapped in ("solvers", "profiles"):
        modules |= {Path("autockpt", path.relative_to(ROOT)) for path in (ROOT / mapped).rglob("*.py")}
    data = {Path("autockpt", path.relative_to(ROOT)) for path in (ROOT / "profiles").glob("*.json.gz")}
    assert data
    expected = {str(path) for path in modules | data}
    expected |= {"autockpt/py.typed", "autockpt/profiles/README.md"}
    assert {name for name in names if name.startswith("autockpt/")} == expected


def test_the_sdist_holds_the_licence(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def test_the_command_solves_a_profile_where_there_is_no_torch(bare: Path, tmp_path: Path) -> None:
    profile, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    chain_profile().save(profile)
    _run(bare / "bin" / "autockpt", "solve", profile, "--budget", "80MiB", "-o", plan, cwd=tmp_path)
    assert 0 < Plan.load(plan).peak_bytes <= 80 * 2**20
    _run(bare / "bin" / "autockpt", "profiles", cwd=tmp_path)
    _run(bare / "bin" / "autockpt", "explain", "gpt2-xl", cwd=tmp_path)
    missing = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)"
    _run(bare / "bin" / "python", "-c", missing, cwd=tmp_path)


@pytest.mark.sweep
def test_the_tests_of_the_solvers_pass_where_there_is_no_torch(bare: Path, tmp_path: Path) -> None:
    (packages,) = bare.glob("lib/python*/site-packages")
    wanted = ["pytest", "hypothesis"]
    for name in wanted:  # grows: what they need is linked too
        _link(name, packages)
        requirements = [Requirement(line) for line in distribution(name).requires or ()]
        needed = [each.name for each in requirements if not each.marker or each.marker.evaluate({"extra": ""})]
        wanted += [each for each in needed if each not in wanted]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    # All are imported; those that search long have no more to say about torch than the rest.
    quick = "test_judge or test_registry or test_units or test_blocks or test_dataflow or test_examples_in_docstrings"
    options = ["-q", "-p", "no:cacheprovider", "-k", quick]
    _run(bare / "bin" / "python", "-m", "pytest", *options, "tests/solvers", "tests/dataflow", cwd=tmp_path)


def _link(name: str, packages: Path) -> None:
    """Make the installed distribution `name` importable from `packages` too."""
    found = distribution(name)
    for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        if not (packages / top).exists():
            (packages / top).symlink_to(str(found.locate_file(top)))


def _run(*command: object, cwd: Path | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
