"""Starts emulations for tests, and finds what they leave on the machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from uneven.cluster.emulate import capabilities, emulation_state
from uneven.cluster.emulate.pure import names
from uneven.runtime.jobs.processes import import_path
from uneven_bench.forked.scripts import run_script

WHY_NOT = capabilities.why_not_isolated()
needs_root = pytest.mark.skipif(bool(WHY_NOT), reason=f"emulates with namespaces and control groups: {WHY_NOT}")

IMPORTED = (
    "uneven.cli.run",
    "uneven.cluster.emulate.emulation",
    "uneven.runtime.launch.rendezvous",
    "rich.console",
)

READY = """
import json, os, sys, time
from pathlib import Path
from uneven.runtime import rundir
run, rank = Path(os.environ["UNEVEN_RUN"]), int(os.environ["RANK"])
def meet(name):  # files, for the network is what is measured
    (run / f"{name}-{rank}").touch()
    while not all((run / f"{name}-{other}").exists() for other in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.005)
def busy(seconds):
    cpu, wall = time.process_time(), time.monotonic()
    while time.monotonic() < wall + seconds:
        pass
    return (time.process_time() - cpu) / (time.monotonic() - wall)
def limit():  # of cores, as the kernel has it now, however busy the machine is; None without one
    mine = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    v1 = next((group for kinds, group in mine.items() if "cpu" in kinds.split(",")), None)
    if v1 is None:
        quota, period = Path(f"/sys/fs/cgroup{mine['']}/cpu.max").read_text().split()
    else:
        quota, period = (Path(f"/sys/fs/cgroup/cpu{v1}/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return None if quota.strip() in ("max", "-1") else int(quota) / int(period)
def say(**what):
    (run / f"said-{rank}.part").write_text(json.dumps(what))
    os.rename(run / f"said-{rank}.part", run / f"said-{rank}.json")
def ready():  # as a session does when its loader is first used; then until the emulator has seen it
    rundir.mark_ready(run, rank)
    meet("ready-to-go")
    time.sleep(0.3)
"""


def script(folder: Path, text: str) -> Path:
    """A worker that needs no torch and so is there at once."""
    path = folder / "worker.py"
    path.write_text(READY + text)
    return path


def cluster(folder: Path, text: str) -> Path:
    """A description."""
    path = folder / "cluster.toml"
    path.write_text('name = "test"\n' + text)
    return path


@contextmanager
def started(folder: Path, cluster: Path | str, *words: str, run: str = "run") -> Iterator[subprocess.Popen[str]]:
    """``uneven emulate`` in the background; what is left of it at the end of the block is killed."""
    line = [sys.executable, "-m", "uneven", "emulate", str(cluster), "--run-dir", str(folder / run), *words]
    env = {**os.environ, "PYTHONPATH": import_path()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, cwd=folder, env=env, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def emulate(folder: Path, cluster: Path | str, *words: str, run: str = "run") -> subprocess.CompletedProcess[str]:
    """``uneven emulate`` until its end; only its launcher need not import torch again."""
    line = ["-m", "uneven", "emulate", str(cluster), "--run-dir", str(folder / run), *words]
    env = {**os.environ, "PYTHONPATH": import_path()}
    return run_script(line, cwd=folder, env=env, imported=IMPORTED, timeout_s=100)


def said(run: Path, count: int) -> list[dict[str, object]]:
    """What each worker said."""
    return [json.loads((run / f"said-{rank}.json").read_text()) for rank in range(count)]


def until(happens: Callable[[], object], within_s: float = 60.0) -> bool:
    end = time.monotonic() + within_s
    while not happens():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def owned_by(pid: int) -> list[str]:
    """Emulations of this process that are written down."""
    found = []
    for path in emulation_state.FOLDER.glob("*.json"):
        try:
            if json.loads(path.read_text())["pid"] == pid:
                found.append(path.stem)
        except FileNotFoundError:
            continue
    return found


def namespaces_of(pid: int) -> set[str]:
    """Network namespaces that a process holds by descriptor."""
    return {link for link in _links(Path(f"/proc/{pid}/fd")) if link.startswith("net:[")}


def _is_of_another_test(process: psutil.Process) -> bool:
    """Return whether another process of pytest-xdist has started it."""
    with contextlib.suppress(psutil.Error):
        here = psutil.Process()
        tests = {one.pid for one in here.parent().children()} if os.environ.get("PYTEST_XDIST_WORKER") else set()
        return bool({one.pid for one in process.parents()} & tests - {here.pid})
    return False


def left_of(runs: list[str], namespaces: set[str], marks: tuple[str, ...]) -> set[str]:
    """Everything on this machine that belongs to these emulations, in words.

    Args:
        marks: parts of the command lines of their processes.
    """
    trees = capabilities.trees()
    found = {str(group) for run in runs for group in trees.groups(run, memory=True) if group.exists()}
    found |= {str(path) for run in runs for path in emulation_state.FOLDER.glob(f"{run}*")}
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if any(mark in command for mark in marks):
            found.add(f"process {process.pid}: {command[:120]}")
        if _is_of_another_test(process):
            continue  # the kernel gives the number of a removed namespace to the next one
        links = {*_links(Path(f"/proc/{process.pid}/fd")), *_links(Path(f"/proc/{process.pid}/ns"))}
        found |= {f"{one} of {process.pid}" for one in links & namespaces}
    mounts = Path("/proc/self/mountinfo").read_text()
    return found | {f"mount {one}" for one in namespaces if one in mounts}


def own_links() -> set[str]:
    """This machine's own network interfaces."""
    return set(psutil.net_if_stats())


def emulation_id(stderr: str) -> str:
    """The id that an emulation says."""
    found = re.search(r"\(emulation (\w+)\)", stderr)
    assert found is not None, stderr
    assert names.is_id(found[1])
    return found[1]


def _links(folder: Path) -> Iterator[str]:
    try:
        entries = list(folder.iterdir())
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return
    for entry in entries:
        try:
            yield os.readlink(entry)
        except OSError:
            continue
