"""What is tried of a machine, and what each outcome means for a user."""

from __future__ import annotations

import os
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from uneven.cli.findings import (
    Finding,
    Level,
    TorchFacts,
    extras,
    on_emulation,
    on_extras,
    on_gloo,
    on_gpus,
    on_torch,
    try_torch,
)
from uneven.emulate.checks import Able

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
        (on_gpus(CUDA, GPUS), Level.GOOD, "sees 2", "--nproc 2"),
        (on_gpus(replace(CUDA, build="ROCm 7.0"), []), Level.GOOD, "ROCm 7.0; torch sees 2", "--nproc 2"),
        (on_emulation(Able()), Level.GOOD, "root", "every key"),
        (on_emulation(Able(load="only root may")), Level.NOTE, "only root may", "need root on Linux"),
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
    lines = ["rich>=13", "pytest[all]>=1; extra == 'one'", "pytest>=1 ; extra == \"two\"", "not-here>=2; extra == 'two'"]
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
