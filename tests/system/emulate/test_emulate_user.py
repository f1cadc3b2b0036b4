"""The emulator with the means of an ordinary user: shares of processor time and their traces, nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from emulation import WHY_NOT, cluster, emulate, said, script, started, until

from uneven import journal
from uneven.policy.core.records import RunRecord
from uneven.runtime.jobs.processes import import_path

TRAINING = """
import torch, uneven
torch.set_num_threads(1)
session = uneven.Session()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = session.setup(model, optimizer)
data = torch.utils.data.TensorDataset(torch.randn(640, 4), torch.randn(640, 1))
for x, y in session.loader(data, global_batch_size=32):
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
session.close()
say(shm=os.path.exists("/dev/shm"))
"""


def test_a_session_trains(tmp_path: Path) -> None:
    worker = str(script(tmp_path, TRAINING))
    nodes = cluster(tmp_path, '[[nodes]]\nname = "node0"\ncores = 0.8\n[[nodes]]\nname = "node1"\ncores = 0.4\n')
    done = emulate(tmp_path, nodes, "--unprivileged", "--balance", "static:shares=2/1", "--", worker)
    assert done.returncode == 0, done.stderr
    assert "workers that are stopped and continued" in done.stderr
    assert "did not start training" not in done.stderr
    read = journal.read(tmp_path / "run")
    starts = [one for records in read.ranks.values() for one in records[:1] if isinstance(one, RunRecord)]
    assert [(one.host, one.world) for one in starts] == [(f"node{rank}", "emulated") for rank in range(2)]
    assert len(list(journal.iterations(list(read.records())))) == 20


@pytest.mark.alone
def test_shares_and_their_traces_hold(tmp_path: Path) -> None:
    nodes = """
[[nodes]]
name = "steady"
cores = 0.5
[[nodes]]
name = "falling"
cores = 0.5
share = { values = [1.0, 0.2], step_s = 2.0 }
"""
    worker = script(tmp_path, "ready()\nfirst = busy(1.2)\ntime.sleep(0.8)\nsay(first=first, second=busy(1.0))\n")
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--unprivileged", "--", str(worker))
    assert done.returncode == 0, done.stderr
    steady, falling = ([float(str(one[key])) for key in ("first", "second")] for one in said(tmp_path / "run", 2))
    assert max(steady) < 0.6
    assert falling[1] < 0.2
    assert falling[1] < 0.6 * falling[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("memory_bytes", "1000000000"), ("load", "1.5"), ("up_bit_per_s", "1e8"), ("latency_s", "0.01")],
)
def test_the_rest_is_refused_with_node_and_key(tmp_path: Path, key: str, value: str) -> None:
    nodes = cluster(tmp_path, f'[[nodes]]\nname = "a"\n{key} = {value}\n')
    worker = str(script(tmp_path, "say(ran=True)"))
    done = emulate(tmp_path, nodes, "--unprivileged", "--", worker)
    assert done.returncode == 2
    assert f"{key} of node a ({float(value):g}): emulation without root was requested" in done.stderr
    assert f"--leave-out {key}" in done.stderr
    assert not (tmp_path / "run").exists()
    without = emulate(tmp_path, nodes, "--unprivileged", "--leave-out", key, "--", worker)
    assert (without.returncode, said(tmp_path / "run", 1)) == (0, [{"ran": True}])


def processes(mark: str) -> list[int]:
    return [one.pid for one in psutil.process_iter(["cmdline"]) if mark in " ".join(one.info["cmdline"] or ())]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nobody_outlives_it(tmp_path: Path, number: signal.Signals) -> None:
    worker = script(tmp_path, "ready()\n(run / f'trains-{rank}').touch()\ntime.sleep(100)\n")
    nodes = cluster(tmp_path, '[[nodes]]\nname = "n"\ncount = 2\ncores = 0.3\n')
    with started(tmp_path, nodes, "--unprivileged", "--", str(worker)) as emulator:
        assert until(lambda: len(list((tmp_path / "run").glob("trains-*"))) == 2)
        assert len(processes(str(worker))) == 3
        emulator.send_signal(number)
        emulator.communicate(timeout=60)
    assert emulator.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert until(lambda: processes(str(worker)) == [])


def test_a_kill_and_a_death_are_told(tmp_path: Path) -> None:
    nodes = '[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n[[events]]\ndo = "kill"\nnode = "b"\nat_s = 0.2\n'
    worker = str(script(tmp_path, "ready()\ntime.sleep(100)\n"))
    done = emulate(tmp_path, cluster(tmp_path, nodes), "--unprivileged", "--", worker)
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 (b, process" in done.stderr
    assert "cluster 'test': event at 0.2 s" in done.stderr


@pytest.mark.alone
@pytest.mark.skipif(bool(WHY_NOT), reason=f"makes a namespace in which it is an ordinary user: {WHY_NOT}")
def test_somebody_who_is_not_root_gets_the_same(tmp_path: Path) -> None:
    base = ["unshare", "--user", "--map-user=65534", "--map-group=65534", sys.executable, "-m", "uneven"]
    env = {**os.environ, "PYTHONPATH": import_path()}

    def uneven(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*base, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)

    worker = script(tmp_path, "ready()\nsay(user=os.geteuid(), share=busy(1.5))\n")
    linked = cluster(tmp_path, '[[nodes]]\nname = "a"\nup_bit_per_s = 1e6\n')
    refused = uneven("emulate", str(linked), "--", str(worker))
    assert refused.returncode == 2
    assert "up_bit_per_s of node a (1e+06): only root may make namespaces and control groups" in refused.stderr
    nodes = cluster(tmp_path, '[[nodes]]\nname = "a"\ncores = 0.3\n')
    done = uneven("emulate", str(nodes), "--run-dir", "run", "--", str(worker))
    assert done.returncode == 0, done.stderr
    (one,) = said(tmp_path / "run", 1)
    assert one["user"] == 65534
    assert float(str(one["share"])) < 0.4
    clean = uneven("doctor", "--clean")
    assert (clean.returncode, "only root" in clean.stderr) == (2, True)
