"""Workers on macOS and Windows, as far as Linux can show it: what these lack is hidden from every process.

``tests/other_system/sitecustomize.py`` says what that shows and what not.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "other_system"
NAMES = {"darwin": "macOS", "win32": "Windows"}
SYSTEMS = pytest.mark.parametrize("system", ["darwin", "win32"])


def run(system: str, *words: str, lacks: str = "", cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "UNEVEN_TEST_SYSTEM": system, "UNEVEN_TEST_LACKS": lacks}
    environment["GLOO_SOCKET_IFNAME"] = "lo"  # the loopback of the system that this really is
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=cwd, capture_output=True, text=True, timeout=100
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


@SYSTEMS
def test_every_module_is_imported_and_every_help_is_shown(system: str, tmp_path: Path) -> None:
    done = run(system, str(FOLDER / "everything.py"), cwd=tmp_path)
    assert done.stdout == f"{NAMES[system]}: all\n", done.stdout + done.stderr


def test_a_name_that_windows_lacks_is_hidden_from_uneven_alone(tmp_path: Path) -> None:
    look = (
        "import os, sys, uneven.runtime.system as s\n"
        "print(s.NAME, hasattr(s.os, 'fork'), hasattr(os, 'fork'), s.sys.platform, sys.platform, s.KILL)\n"
        "exec('import fcntl', vars(s))"
    )
    done = run("win32", "-c", look, cwd=tmp_path)
    assert done.stdout == "Windows False True win32 linux 15\n"
    assert "ModuleNotFoundError: No module named 'fcntl' on win32" in done.stderr


@SYSTEMS
def test_one_worker_trains(system: str, tmp_path: Path) -> None:
    done = run(system, str(FOLDER / "train.py"), cwd=tmp_path)
    assert done.stdout == f"{NAMES[system]} rank 0 on cpu: learned\n", done.stderr


@pytest.mark.parametrize(
    ("system", "sync", "servers", "lacks"),
    [
        ("darwin", "bsp", "0", ""),
        ("darwin", "asp", "1", ""),
        ("win32", "bsp", "0", ""),
        ("win32", "decoupled:every=2,outer_momentum=0", "1", "gloo"),
        ("win32", "asp", "0", "gloo"),
        ("win32", "bsp", "0", "gloo"),
    ],
)
def test_two_workers_train(system: str, sync: str, servers: str, lacks: str, tmp_path: Path) -> None:
    words = ["-m", "uneven", "run", "--nproc", "2", "--sync", sync, "--run-dir", "run"]
    words += ["--servers", servers] if servers != "0" else []
    done = run(system, *words, str(FOLDER / "train.py"), lacks=lacks, cwd=tmp_path)
    told = sorted(line for line in done.stdout.splitlines() if line.startswith(NAMES[system]))
    assert told == [f"{NAMES[system]} rank {rank} on cpu: learned" for rank in (0, 1)], done.stdout + done.stderr
    assert done.returncode == 0
    assert ("has no gloo, so gradients pass through the store" in said(done)) == ((sync, lacks) == ("bsp", "gloo"))


@SYSTEMS
def test_what_a_system_lacks_is_refused_by_name(system: str, tmp_path: Path) -> None:
    done = run(system, "-m", "uneven", "emulate", "bandwidth_cut", "--", str(FOLDER / "train.py"), cwd=tmp_path)
    assert done.returncode == 2
    if system == "darwin":
        assert "only Linux has namespaces and control groups, and this is macOS; --leave-out" in said(done)
    else:
        assert "emulated clusters work on Linux and macOS only, and this is Windows: use WSL 2" in said(done)


def test_shares_of_a_core_are_refused_on_windows(tmp_path: Path) -> None:
    done = run("win32", "-m", "uneven", "run", "--shares", "0.5,0.5", str(FOLDER / "train.py"), cwd=tmp_path)
    assert done.returncode == 2
    assert "shares of a core work on Linux and macOS only, and this is Windows: use WSL 2" in said(done)
