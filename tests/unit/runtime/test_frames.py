"""What a worker prints of an exception that its script does not catch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from uneven.runtime.jobs.processes import import_path

SCRIPT = """
import sys
from pathlib import Path
from uneven.runtime.rundir import create
from uneven.runtime.world import report_failures
report_failures()
report_failures()  # each session does
def mine():
    if len(sys.argv) > 1: raise ValueError("a bad label")
    create(Path("/proc/nowhere"), {})
mine()
"""
OURS = [
    "Traceback (most recent call last):",
    *('File "FOLDER/train.py", line N, in <module>', "mine()"),
    *('File "FOLDER/train.py", line N, in mine', 'create(Path("/proc/nowhere"), {})'),
    "uneven.errors.JournalError: cannot write /proc/nowhere/run.toml: No such file or directory",
]


@pytest.fixture
def train(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def printed(folder: Path, *arguments: str, files: tuple[str, ...], **more: str) -> list[str]:
    """What workers print into one file, one after the other, each with its own file for its launcher."""
    with (folder / "stderr").open("wb") as sink:
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            env = {**os.environ, **more, "PYTHONPATH": import_path(), "TORCHELASTIC_ERROR_FILE": str(folder / file)}
            done = subprocess.run([sys.executable, folder / "train.py", *arguments], env=env, stderr=sink, check=False)
            assert done.returncode == 1
    text = re.sub(r"line \d+", "line N", (folder / "stderr").read_text()).replace(str(folder), "FOLDER")
    return [line.strip() for line in text.splitlines() if "^^^" not in line]


@pytest.mark.parametrize("files", [("0/error.json", "1/error.json"), ("0.json", "1.json")], ids=["torch's", "ours"])
def test_workers_print_one_error_of_ours_once_with_the_users_own_lines(train: Path, files: tuple[str, ...]) -> None:
    """It comes out of a function of uneven, which has met an error of Python's."""
    assert printed(train, files=files) == OURS
    for file in files:  # their launcher knows of both
        told = json.loads((train / file).read_text())["message"]["extraInfo"]
        assert (told["error"], "rundir.py" in told["py_callstack"]) == ("JournalError", False)


def test_all_frames_are_printed_on_request_and_of_the_users_own_errors(train: Path) -> None:
    every = printed(train, files=("0.json",), UNEVEN_TRACEBACK="1")
    assert any("src/uneven/runtime/rundir.py" in line for line in every)
    assert [line for line in OURS if line not in every] == []
    own = printed(train, "own", files=("2.json", "3.json"))
    assert own[-1] == "ValueError: a bad label"
    assert len(own) == len(OURS)
