"""Gathering facts, on the machine that the tests run on and on small made-up trees of files.

That torch is tried with two processes, which meet or do not, is what ``test_doctor.py`` shows.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from uneven.cli.limits import Limit, control_group_limit
from uneven.cli.machine import (
    choose_interface,
    gather,
    installed_version,
    look_at,
    time_lookup,
    torch_facts,
    try_throttling,
    try_torch,
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (
            {"own": "0::/a/b\n", "fs/a/b/cpu.max": "150000 100000\n", "fs/a/b/memory.max": "max\n"},
            Limit(cores=1.5),
        ),
        (
            {"own": "0::/a/b\n", "fs/a/cpu.max": "50000 100000", "fs/a/b/cpu.max": "max 100000",
             "fs/a/b/memory.max": "4096"},
            Limit(cores=0.5, memory_bytes=4096),
        ),
        ({"own": "0::/host/only\n", "fs/cpu.max": "200000 100000"}, Limit(cores=2.0)),
        (
            {"own": "3:cpu,cpuacct:/j\n4:memory:/j\n", "fs/cpu,cpuacct/j/cpu.cfs_quota_us": "25000",
             "fs/cpu,cpuacct/j/cpu.cfs_period_us": "100000",
             "fs/memory/j/memory.limit_in_bytes": "1048576"},
            Limit(cores=0.25, memory_bytes=1048576),
        ),
        (
            {"own": "3:cpu:/j\n4:memory:/j\n", "fs/cpu/j/cpu.cfs_quota_us": "-1",
             "fs/cpu/j/cpu.cfs_period_us": "100000",
             "fs/memory/j/memory.limit_in_bytes": "9223372036854771712"},
            Limit(),
        ),
        ({}, Limit()),
    ],
)  # fmt: skip
def test_control_group_limits(tmp_path: Path, files: dict[str, str], limit: Limit) -> None:
    write(tmp_path, files)
    assert control_group_limit(mounted=tmp_path / "fs", own=tmp_path / "own") == limit


def test_data_folder_with_a_file_gone(tmp_path: Path) -> None:
    assert not look_at(str(tmp_path / "nowhere")).exists
    write(tmp_path, {"SHA256SUMS": "0a  fashion_mnist/fashion_mnist.npz\n0b  text/a b.txt\n",
                     "fashion_mnist/fashion_mnist.npz": ""})  # fmt: skip
    folder = look_at(str(tmp_path))
    assert (folder.listed, folder.absent, folder.fashion_mnist) == (2, ("text/a b.txt",), True)


def test_a_named_interface_must_exist() -> None:
    loopback = next(
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address == "127.0.0.1" for entry in entries)
    )
    assert choose_interface(loopback).address == "127.0.0.1"
    wrong = choose_interface(f"{loopback},nosuch0")
    assert (wrong.exists, wrong.name) == (False, "nosuch0")


def test_the_interface_taken_by_itself_can_be_bound() -> None:
    chosen = choose_interface("")
    family = socket.AF_INET6 if ":" in chosen.address else socket.AF_INET
    with socket.socket(family) as trial:
        trial.bind((chosen.address, 0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no signals to stop a process with")
def test_throttling_is_tried_on_a_real_child() -> None:
    assert try_throttling() == ""


def trying(stand_in: str, folder: Path) -> dict[str, str]:
    """An environment in which ``import torch`` runs ``stand_in``."""
    write(folder, {"torch.py": stand_in})
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_trial_that_hangs_is_ended_with_its_child(tmp_path: Path) -> None:
    hang = f"import os, time; open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(60)"
    facts = try_torch(trying(hang, tmp_path), limit_s=3.0)
    assert facts.error.startswith("no answer within 3 s")
    assert not facts.gloo
    pids = [int(file.name) for file in tmp_path.iterdir() if file.name.isdigit()]
    assert len(pids) == 2
    deadline_s = time.monotonic() + 60
    while any(map(running, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(map(running, pids))


def test_a_torch_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    facts = try_torch(trying("raise ImportError('libfoo.so is not here')", tmp_path))
    assert facts.version == ""
    assert "libfoo.so is not here" in facts.error


def test_what_was_said_before_the_end_is_kept() -> None:
    said = json.dumps({"version": "9.9", "nccl": True, "of_a_later_version": 1}) + "\nnoise\n"
    facts = torch_facts(said, "Traceback\n  …\nRuntimeError: refused\n\n", "exit code 1")
    assert (facts.version, facts.nccl, facts.gloo) == ("9.9", True, False)
    assert facts.error == "exit code 1: RuntimeError: refused"


def test_versions_of_packages() -> None:
    assert installed_version("pytest") == pytest.__version__
    assert installed_version("no-such-package-here") == ""


def test_gather_fills_everything(tmp_path: Path) -> None:
    quick = trying("raise ImportError('tried elsewhere')", tmp_path)  # test_doctor.py gathers with the real torch
    facts = gather({**quick, "UNEVEN_DATA": "/nowhere"})
    assert "tried elsewhere" in facts.torch.error
    assert facts.usable_cores <= facts.cores
    assert 0 < facts.available_bytes <= facts.memory_bytes
    assert facts.data is not None
    assert not facts.data.exists


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own function stands for one: which server the machine asks is not a test's to change."""
    asked, answers = [], threading.Event()

    def look_up(address: tuple[str, int], flags: int) -> None:
        asked.append(address[0])
        answers.wait(10)

    monkeypatch.setattr(socket, "getnameinfo", look_up)
    try:
        assert 0.05 <= time_lookup("192.0.2.7", limit_s=0.05) < 5
        assert time_lookup("fe80::1", limit_s=0.05) >= 0.05
    finally:
        answers.set()
    assert asked == ["::ffff:192.0.2.7", "fe80::1"]


def test_an_address_without_a_name_is_an_answer() -> None:
    assert time_lookup("127.0.0.1") >= 0
