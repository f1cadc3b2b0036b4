"""Folders that a killed run left in the temporary directory: its own are taken away, others are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from uneven.runtime.jobs.engines import NOTE, sweep


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pymp-"))
    (path / "listener-1").touch()
    yield path
    for one in (path / "listener-1", path):
        if one.exists():
            one.unlink() if one.is_file() else one.rmdir()


def note(directory: Path, folder: Path, process: int, started_s: float = 1.0) -> None:
    (directory / NOTE).write_text(json.dumps({"folder": str(folder), "process": process, "started_s": started_s}))


def test_what_a_process_that_is_gone_left_is_deleted(folder: Path, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait()
    note(tmp_path, folder, gone.pid)
    assert sweep(tmp_path) == folder
    assert not folder.exists()
    mine = json.loads((tmp_path / NOTE).read_text())
    assert (mine["process"], Path(mine["folder"]).name[:5]) == (os.getpid(), "pymp-")
    assert sweep(tmp_path) is None  # a second training in this process uses the same folder
    assert Path(mine["folder"]).is_dir()
    folder.mkdir()
    note(tmp_path, folder, os.getpid())  # the number of a process may come again
    assert sweep(tmp_path) == folder


def test_nothing_else_is_deleted(folder: Path, tmp_path: Path) -> None:
    note(tmp_path, folder, os.getpid(), psutil.Process().create_time())
    assert sweep(tmp_path) is None
    inside = tmp_path / "pymp-elsewhere"
    inside.mkdir()
    link = folder.with_name(folder.name + "-link")
    link.symlink_to(inside)
    try:
        for other in (inside, folder.with_name("pymp-never"), folder.parent, link):
            note(tmp_path, other, os.getpid())
            assert sweep(tmp_path) is None
    finally:
        link.unlink()
    for text in ("{", "[]", '{"folder": 1}', '{"folder": "/", "process": "x", "started_s": 0}'):
        (tmp_path / NOTE).write_text(text)
        assert sweep(tmp_path) is None
    assert folder.is_dir()
    assert inside.is_dir()
