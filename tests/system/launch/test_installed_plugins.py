"""A run whose balancer and policy another distribution brings: launcher and workers find them by name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from distributions import install
from uneven import journal
from uneven.journal.reader import rank_path
from uneven.policy.core.records import ExchangeRecord, StepRecord
from uneven_bench.forked.scripts import run_script

SCRIPT = """
import torch
import uneven

session = uneven.Session()
model = torch.nn.Linear(5, 3)
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.randn(60, 5), torch.zeros(60, dtype=torch.long))
for x, y in session.loader(data, global_batch_size=20):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
session.close()
"""
IMPORTED = ("uneven.cli.run", "uneven.runtime.launch.fixed_workers", "rich.console")


def run(directory: Path, installed: Path, *options: object) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(SCRIPT)
    words = ["-m", "uneven_bench.forked.run", "run", "--nproc", 2, *options, "--run-dir", "run", "train.py"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))}
    return run_script(words, cwd=directory, env=env, imported=IMPORTED, timeout_s=100)


def test_a_run_finds_installed_plug_ins_in_launcher_and_workers(tmp_path: Path) -> None:
    installed = install(tmp_path / "installed")
    done = run(tmp_path, installed, "--balance", "mine:least=5", "--sync", "often")
    assert done.returncode == 0, done.stderr
    ranks = journal.read(tmp_path / "run").ranks
    for rank, records in ranks.items():
        steps = [one for one in records if isinstance(one, StepRecord)]
        assert [one.batch for one in steps] == [(5, 15)[rank]] * 3
        assert len([one for one in records if isinstance(one, ExchangeRecord)]) == 1
    assert set(ranks) == {0, 1}
    assert '"plug-ins":"fast-shares 1.2"' in rank_path(tmp_path / "run", 0).read_text()


def test_a_run_is_refused_before_any_worker_starts(tmp_path: Path) -> None:
    installed = install(tmp_path / "installed", code="import gone")
    done = run(tmp_path, installed, "--balance", "mine")
    assert done.returncode == 2
    said = "'mine = fast_shares:Mine' of fast-shares 1.2 (ModuleNotFoundError: No module named 'gone')"
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
