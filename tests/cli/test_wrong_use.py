"""Wrong use ends in one line on stderr and the right exit status, before the long work, and never in a traceback."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Run
from tests.doors import data_files, solving


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slove"], "there is no verb 'slove'; did you mean 'solve'?"),
        (["zzz"], "there is no verb 'zzz'; there are "),
        (["--jsn"], "--jsn"),
        (["solve", "{file}", "--bugdet", "1"], "--budget"),
        (["solve", "{file}", "--budget"], "'--budget' requires an argument"),
        (["solve"], "Missing argument 'SOURCE'"),
        (["solve", "{file}", "{file}", "--budget", "1"], "unexpected extra argument"),
        (["solve", "missing.json", "--budget", "1"], "missing.json"),
        (["explain", "{folder}"], "Is a directory"),
        (["explain", "/dev/zero"], "/dev/zero is no regular file but a device, which might block or never end"),
        (["solve", "{pipe}", "--budget", "1"], "pipe is no regular file but a pipe"),
        (["frontier", "{pipe}"], "the command line reads a pipe where - is given"),
        (["fit", "{large}"], "large.json has 68,719,476,736 bytes. At most 268,435,456 are read"),
        (["verify", "m:f", "--plan", "{pipe}"], "pipe is no regular file but a pipe"),
        (["verify", "a\0b.py:f"], "a null character"),
        (["explain", "a\0b.json"], "'a\\x00b.json' can be no path of a file"),
        (["solve", "{file}", "--budget", "min", "-o", "a\0b.json"], "a null character"),
        (["profile", "{pipe}.py:build"], "pipe.py: it is no regular file"),
        (["profile", "{large}.py:build"], "large.json.py: it has 68,719,476,736 bytes"),
        (["profile", "{folder}/missing.py:build"], "missing.py: no such file"),
        (["solve", "{file}", "--budget", "1", "--solver", "ilq"], "'ilp'"),
        (["frontier", "{file}", "--solver", "chian"], "'chain'"),
        (["verify", "m:f", "--solver", "chian"], "'chain'"),
        (["solve", "{file}", "--budget", "1", "--seconds", "soon"], "--seconds"),
        (["solve", "{file}", "--budget", "1", "--seconds", "nan"], "nan is no number of seconds"),
        (["frontier", "{file}", "--seconds", "0"], "0.0 is not in the range x>0"),
        (["solve", "{file}", "--budget", "1", "-o", "{folder}"], "is a directory"),
        (
            ["solve", "{file}", "--budget", "1", "-o", "missing/plan.json"],
            "'missing/plan.json' cannot be written: No such file or directory",
        ),
        (["solve", "{file}", "--budget", "1", "-o", "/proc/plan.json"], "cannot be written"),
        (["solve", "{file}", "--budget", "1", "-o", "-"], "--json prints the document on stdout"),
        (["profile", "m:f", "--mode", "fake", "--device", "h1000"], "'h1000' is not one of 'a10', 'a100', "),
        (["profile", "m:f", "--device", "h100"], "--device goes with --mode fake"),
        (["solve", "m:f", "--budget", "1", "--mode", "measured", "--device", "h100"], "--device goes with --mode fake"),
        (["solve", "{file}", "--budget", "1", "--mode", "fake"], "--mode goes with file.py:function"),
        (["explain", "{file}", "--device", "h100"], "--device goes with file.py:function"),
        (["frontier", "{file}", "--optimizer", "sgd"], "--optimizer goes with file.py:function"),
        (["explain", "{file}", "--solver", "chain"], "--solver goes with --budget or --max-overhead"),
    ],
)
def test_one_line_and_status_two(
    run: Run, profile_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setattr(solving, "choose", None)  # nothing is solved
    for name in ("pipe", "pipe.py"):
        os.mkfifo(tmp_path / name)
    for name in ("large.json", "large.json.py"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 2**36)
    places = {"file": profile_file, "folder": tmp_path, "pipe": tmp_path / "pipe", "large": tmp_path / "large.json"}
    result = run(*(argument.format(**places) for argument in arguments))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("Error: ")
    assert result.err.count("\n") == 1
    assert words in result.err


def test_no_verb_prints_the_help(run: Run) -> None:
    result = run()
    assert (result.status, result.err) == (2, "")
    assert result.out == run("--help").out


def test_json_is_a_document_for_what_fails_too(run: Run, profile_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for arguments, error, status in (
        (("explain", broken), "InvalidFile", 2),
        (("solve", profile_file, "--budget", "8 G B"), "BudgetError", 2),
        (("solve", profile_file, "--budget", "1GiB", "--keep", "nothing"), "PinError", 2),
        (("verify", f"{broken}:f"), "Misuse", 2),
    ):
        result = run(*arguments, "--json")
        document = json.loads(result.out)
        assert result.status == document["exit_status"] == status
        assert (document["status"], document["error"]) == ("failed", error)
        assert result.err == f"Error: {' '.join(document['message'].split())}\n"


def test_a_file_that_may_not_be_read(run: Run, profile_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    result = run("explain", profile_file)
    assert (result.status, result.err) == (2, f"Error: cannot read {profile_file}: Permission denied\n")


@pytest.mark.parametrize("arguments", [["profile", "m:f"], ["verify", "m:f"], ["demo"]], ids=" ".join)
def test_verbs_that_run_a_model_say_that_there_is_no_torch(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run(*arguments)
    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert "install it by: pip install torch" in result.err
    document = json.loads(run(*arguments, "--json").out)
    assert document["error"] == "MissingExtra"


def test_an_interrupt(run: Run, profile_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(solving, "choose", interrupt)
    result = run("solve", profile_file, "--budget", "1GiB")
    assert (result.status, result.out, result.err) == (130, "", "\nError: interrupted\n")


def test_a_device_is_written_to_and_not_replaced(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--budget", "1GiB", "-o", os.devnull)
    assert result.status == 0
    assert Path(os.devnull).is_char_device()


def command(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "autockpt", *map(str, arguments)], stderr=subprocess.PIPE, check=False, **options
    )


def test_a_reader_that_has_gone(profile_file: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = command("explain", profile_file, stdout=writer)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (1, b"")


def test_a_disk_that_is_full(profile_file: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        result = command("explain", profile_file, stdout=full)
    assert result.returncode == 1
    assert result.stderr == b"Error: cannot write to standard output: No space left on device\n"


def test_closed_streams(profile_file: Path) -> None:
    result = command("explain", profile_file, preexec_fn=lambda: os.close(1))
    assert (result.returncode, result.stderr) == (0, b"")
    result = command("explain", "-", preexec_fn=lambda: os.close(0))
    assert (result.returncode, result.stderr.count(b"\n")) == (2, 1)
    assert b"standard input is closed" in result.stderr


def test_standard_input_is_read_up_to_the_bound(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "MAXIMUM_BYTES", 10)
    result = run("explain", "-", stdin=b" " * 11)
    assert result.status == 2
    assert "<stdin> has more than 10 bytes. At most 10 are read" in result.err


SLIPS = {
    "--budget": ["8gigs", "8 G", "150%", "-1", "least"],
    "--max-overhead": ["15", "0", "nan", "1e9"],
    "--offload": ["host@fast/s"],
}


@pytest.mark.parametrize(
    "arguments",
    [
        (verb, option, slip)
        for verb, options in {
            "solve": ["--budget", "--max-overhead", "--offload"],
            "explain": ["--budget", "--max-overhead"],
            "frontier": ["--budget", "--offload"],
            "verify": ["--budget", "--max-overhead"],
            "fit": ["--offload"],
        }.items()
        for option in options
        for slip in SLIPS[option]
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_before_the_function_is_called(
    run: Run, tmp_path: Path, arguments: tuple[str, str, str]
) -> None:
    """`--budget 8gigs` took 147 s to be refused."""
    verb, option, slip = arguments
    script, called = tmp_path / "train.py", tmp_path / "called"
    script.write_text(f"open({str(called)!r}, 'w')\n")
    asked = ["--budget", "8GB"] if verb == "solve" and option == "--offload" else []
    result = run(verb, f"{script}:build", f"{option}={slip}", *asked)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("Error: ") and not called.exists()


def test_an_overhead_in_percent_is_told_what_was_meant(run: Run, profile_file: Path) -> None:
    result = run("solve", profile_file, "--max-overhead", "15")
    assert result.status == 2 and "did you mean 0.15?" in result.err


@pytest.mark.parametrize("arguments", [["verify", "FUNCTION", "--plan"], ["explain", "FILE", "--profile"], ["fit"]])
def test_a_file_that_is_not_there_is_one_line(run: Run, profile_file: Path, arguments: list[str]) -> None:
    words = {"FUNCTION": "train.py:build", "FILE": str(profile_file)}
    result = run(*(words.get(each, each) for each in arguments), "missing/file.json")
    assert (result.status, result.err) == (2, "Error: cannot read missing/file.json: No such file or directory\n")


@pytest.mark.parametrize("verb", ["solve", "explain", "frontier"])
def test_a_share_is_of_the_memory_of_the_profiles_device(run: Run, verb: str) -> None:
    result = run(verb, "resnet-50", "--budget", "40%", "--json")
    assert result.status == 0, result.err
    assert "needs a device whose memory is known" not in result.err
