"""``uneven doctor`` from the outside, and what each outcome of what it tries means for a user."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from uneven.cli.doctor import (
    NO_NVML,
    Finding,
    Level,
    TorchFacts,
    extras,
    on_emulation,
    on_extras,
    on_gloo,
    on_gpus,
    on_torch,
    show,
    try_torch,
)
from uneven.cluster.emulate.pure.requirements import Able


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uneven", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment})


@pytest.mark.rest
def test_here_several_workers_can_train() -> None:
    done = doctor(COLUMNS="400")  # or it breaks its lines
    assert done.returncode == 0, done.stdout
    version = importlib.metadata.version("torch")
    assert re.search(rf"torch +{re.escape(version.partition('+')[0])}", done.stdout)
    assert "two processes added up over 127.0.0.1" in done.stdout
    assert done.stdout.strip().endswith("Several workers can train here.")
    assert done.stdout.count("→") == 5
    assert done.stderr == ""


@pytest.mark.rest
def test_a_wrong_interface_is_named_and_the_exit_code_says_so() -> None:
    done = doctor("--format", "json", GLOO_SOCKET_IFNAME="nosuch0")
    answer = json.loads(done.stdout)
    assert done.returncode == 1
    assert answer["works"] is False
    (torch,) = [row for row in answer["findings"] if row["topic"] == "torch"]
    assert torch["found"].startswith(importlib.metadata.version("torch").partition("+")[0])
    missing = [row for row in answer["findings"] if row["level"] == "missing"]
    assert {row["topic"] for row in missing} == {"gloo"}
    assert all("nosuch0" in row["found"] and "GLOO_SOCKET_IFNAME" in row["consequence"] for row in missing)


def test_show_names_what_is_missing() -> None:
    out = io.StringIO()
    found = [Finding("gloo", Level.MISSING, "refused", "[cure]"), Finding("data", Level.NOTE, "old", "fetch")]
    show(found, Console(file=out, width=60))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["missing", "gloo", "refused"] in lines
    assert ["→", "[cure]"] in lines
    assert lines[-1] == ["Several", "workers", "cannot", "train", "here:", "gloo."]


CPU = TorchFacts(version="2.13.0+cpu", build="CPU", gloo=True)
CUDA = replace(CPU, build="CUDA 13.0", devices=2, nccl=True)
GPUS = ["A", "A"]


@pytest.mark.parametrize(
    ("finding", "level", "found", "consequence"),
    [
        (on_torch(CPU), Level.GOOD, "2.13.0+cpu (CPU build)", "trains"),
        (on_torch(TorchFacts(error="ImportError: no torch")), Level.MISSING, "no torch", "pip install"),
        (on_gloo(CPU), Level.GOOD, "added up", "several workers"),
        (on_gloo(replace(CPU, gloo=False, error="refused")), Level.MISSING, "refused", "GLOO_SOCKET_IFNAME"),
        (on_gpus(CPU, [], "NVML: no driver"), Level.GOOD, "none (NVML: no driver)", "on CPU"),
        (on_gpus(CPU, GPUS), Level.NOTE, "A, A; torch sees 0", "a CPU build: install one for your driver"),
        (on_gpus(replace(CUDA, devices=1), GPUS), Level.NOTE, "sees 1", "CUDA_VISIBLE_DEVICES"),
        (on_gpus(replace(CUDA, nccl=False), GPUS), Level.NOTE, "sees 2", "that has NCCL"),
        (on_gpus(CUDA, [], NO_NVML), Level.NOTE, "sees 2", "pip install '.[gpu]'"),
        (on_gpus(CUDA, GPUS), Level.GOOD, "sees 2", "--nproc 2"),
        (on_gpus(replace(CUDA, build="ROCm 7.0"), []), Level.GOOD, "ROCm 7.0; torch sees 2", "--nproc 2"),
        (on_emulation(Able()), Level.GOOD, "root", "every key"),
        (on_emulation(Able(load="only root may")), Level.NOTE, "only root may", "run it as root on Linux"),
        (on_emulation(Able(links="no tbf", latency="no netem")), Level.NOTE, "no tbf; no netem", "--leave-out KEY"),
        (on_extras({"ray": [], "graph": []}), Level.GOOD, "installed: ray, graph", "nothing"),
        (on_extras({"ray": [], "graph": ["pymetis"]}), Level.NOTE, "installed: ray", "graph: pip install '.[NAME]'"),
        (on_extras({"ray": ["ray"]}), Level.NOTE, "installed: none", "ray: pip install"),
    ],
)
def test_each_outcome_has_its_cure(finding: Finding, level: Level, found: str, consequence: str) -> None:
    assert finding.level is level
    assert found in finding.found
    assert consequence in finding.consequence


def test_an_extra_is_there_if_all_its_packages_are() -> None:
    lines = ["rich>=13", "pytest[all]>=1; extra == 'one'", 'pytest>=1 ; extra == "two"', "not-here>=2; extra == 'two'"]
    assert extras(lines) == {"one": [], "two": ["not-here"]}
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    lines = [f"{what}; extra == {name!r}" for name, each in declared["optional-dependencies"].items() for what in each]
    assert set(extras(lines)) == set(declared["optional-dependencies"])


def trying(stand_in: str, folder: Path) -> dict[str, str]:
    """An environment in which ``import torch`` runs ``stand_in``."""
    (folder / "torch.py").write_text(stand_in)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_trial_that_hangs_ends_with_its_child(tmp_path: Path) -> None:
    hang = f"import os, time; open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(60)"
    facts = try_torch(trying(hang, tmp_path), limit_s=3)
    assert facts.error.startswith("no answer within 3 s")
    assert not facts.gloo
    pids = [int(file.name) for file in tmp_path.iterdir() if file.name.isdigit()]
    assert len(pids) == 2
    deadline_s = time.monotonic() + 60
    while any(map(running, pids)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(map(running, pids))


BROKEN = """
import sys, types
def refuse(*_, **__): raise RuntimeError("refused")
sys.modules["torch.distributed"] = distributed = types.ModuleType("torch.distributed")
distributed.TCPStore, distributed.is_nccl_available = refuse, lambda: True
__version__, version = "9.9", types.SimpleNamespace(cuda=None, hip="7.0")
cuda = types.SimpleNamespace(device_count=lambda: 0)
"""


def test_what_was_reported_before_the_end_is_kept(tmp_path: Path) -> None:
    facts = try_torch(trying(BROKEN, tmp_path))
    assert (facts.version, facts.build, facts.nccl, facts.gloo) == ("9.9", "ROCm 7.0", True, False)
    assert facts.error == "the trial ended with exit code 1: RuntimeError: refused"


def test_a_torch_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    facts = try_torch(trying("raise ImportError('libfoo.so is not here')", tmp_path))
    assert facts.version == ""
    assert "libfoo.so is not here" in facts.error
