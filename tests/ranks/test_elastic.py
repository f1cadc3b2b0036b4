"""Workers die, are late, leave and join in one run: no sample is lost or used twice, and the model is one process's."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import elastic_script
import pytest
import torch
import torch.nn.functional as F

from metadata_service import MetadataService, serving
from uneven import journal
from uneven.policy.core.records import MembershipRecord
from uneven_bench.forked.scripts import Script

pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
IMPORTED = ("uneven.cli.run", "uneven.runtime.launch.elastic_workers", "rich.console")


PORTS = range(20_000, 30_000)
"""Below those that the kernel gives to whoever connects, one of whom could have a free port before it is used."""


def free_port() -> int:
    """A port on which nobody listens, and hardly anybody else looks for one."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def run(*words: object, merged: bool = False) -> Script:
    """``uneven run`` with these words, forked. Under Ray elastic runs start as they do for users."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    return Script(["-m", "uneven_bench.forked.run", "run", *words], env=env, merged=merged, imported=IMPORTED)


def await_door(process: Script, folder: Path) -> None:
    """Until the workers wait for one to join."""
    while not (folder / "door").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)


def steps(folder: Path) -> dict[tuple[int, int], list[int]]:
    """(epoch, iteration) → the samples in it, of all workers."""
    found: dict[tuple[int, int], list[int]] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            epoch, iteration, ids = json.loads(line)
            found.setdefault((epoch, iteration), []).extend(ids)
    return dict(sorted(found.items()))


def replayed(those: dict[tuple[int, int], list[int]]) -> dict[str, torch.Tensor]:
    """What one process makes of the same steps."""
    x, y, _ = elastic_script.dataset().tensors
    model = elastic_script.model()
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=elastic_script.LR, momentum=elastic_script.MOMENTUM)
    for ids in those.values():
        optimizer.zero_grad()
        F.cross_entropy(model(x[ids]), y[ids]).backward()
        optimizer.step()
    return model.state_dict()


def check(folder: Path, epochs: int, survivors: set[int]) -> None:
    those = steps(folder)
    for epoch in range(epochs):
        used = Counter(one for (of, _), ids in those.items() if of == epoch for one in ids)
        assert sorted(used) == list(range(elastic_script.N)), "samples were lost"
        assert set(used.values()) == {1}, "samples were used twice"
    models = {int(path.stem): torch.load(path) for path in folder.glob("*.pt")}
    assert set(models) == survivors
    one = replayed(those)
    first = models[min(survivors)]
    for name, tensor in first.items():
        assert all(torch.equal(tensor, other[name]) for other in models.values()), name
        assert tensor.dtype != torch.float64 or (tensor - one[name]).abs().max() < 1e-12, name
    places = sorted((folder / f"{worker}.place").read_text() for worker in survivors)
    assert places == [f"{place} of {len(survivors)}" for place in range(len(survivors))]


def noted(run: Path, worker: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Who left and who came, as a worker has written it down."""
    records = [one for one in journal.read(run).records() if isinstance(one, MembershipRecord) and one.rank == worker]
    return [(one.left, one.came) for one in records]


def test_killed_late_joined_and_left_in_one_run(tmp_path: Path) -> None:
    """Worker 3 dies before an exchange, and 1 after one that 0 lacks; 4 joins; 2 is to leave after one that 0
    lacks, and stays for another step; 0 dies, so that no worker is left of those that began."""
    folder = tmp_path / "run"
    faults = ["kill@3:7", "after@1:12", "late@0:12", "door@33", "leave@2:44", "slow@0:44", "kill@0:60"]
    script = [HERE / "elastic_script.py", tmp_path, 3, 0, *faults]
    meeting = f"127.0.0.1:{free_port()}"
    with run("--nproc", 4, "--elastic", "1:4", "--rdzv-endpoint", meeting, "--run-dir", folder, *script) as whole:
        await_door(whole, tmp_path)
        with run("--join", meeting, "--run-dir", folder, *script) as joins:
            said, said_there = whole.communicate(200)[1], joins.communicate(100)[1]
    assert (whole.returncode, joins.returncode) == (0, 0), said + said_there
    check(tmp_path, 3, {4})
    assert f"others join with `uneven run --join {meeting} --run-dir {folder} " in said, said
    assert "rank 3 " in said, said
    assert "rank 1 " in said, said
    assert "worker 2 got a request to leave" in said, said
    # It stays for a step; a busy machine may bring the request a step later.
    assert 45 <= json.loads((tmp_path / "2.jsonl").read_text().splitlines()[-1])[1] < 60
    assert "worker 4 has joined" in said_there, said_there
    assert noted(folder, 2) == [((3,), ()), ((1,), ()), ((), (4,))]
    assert noted(folder, 4) == [((2,), ()), ((0,), ())]


def test_rank_0_and_all_but_one_die_while_readers_read_ahead(tmp_path: Path) -> None:
    """The last of them in the last exchange of an epoch: what it had comes again in one more iteration."""
    faults = ["kill@0:5", "kill@2:24"]
    script = [HERE / "elastic_script.py", tmp_path, 2, 1, *faults]
    with run("--nproc", 3, "--elastic", "1:3", "--run-dir", tmp_path / "run", *script) as it:
        said = it.communicate(200)[1]
    assert it.returncode == 0, said
    check(tmp_path, 2, {1})
    last = max(iteration for epoch, iteration in steps(tmp_path) if epoch == 0)
    assert last > 24, "25 iterations, from 0, and more for what came again"


def test_too_few_are_left(tmp_path: Path) -> None:
    script = [HERE / "elastic_script.py", tmp_path, 1, 0, "kill@1:3"]
    with run("--nproc", 2, "--elastic", "2:3", "--run-dir", tmp_path / "run", *script) as it:
        said = it.communicate(200)[1]
    assert it.returncode in (128 + signal.SIGKILL, 1)
    assert "the run needs 2" in said, said


def test_a_notice_and_a_signal_of_slurms_make_workers_leave(tmp_path: Path) -> None:
    """Worker 1's machine is announced to go; then the launcher is sent the signal that --leave-on names."""
    script = tmp_path / "train.py"
    script.write_text(TOLD)
    folder = tmp_path / "run"
    words = ["--nproc", 2, "--elastic", "1:2", "--leave-on", "USR1", "--run-dir", folder, script]
    with serving(MetadataService(quiet=2)) as url, run(*words, url, merged=True) as it:
        while "workers now: 1" not in it.printed():
            assert it.poll() is None, it.printed()
            time.sleep(0.02)
        it.send_signal(signal.SIGUSR1)
        said = it.communicate(100)[0]
    assert it.returncode == 128 + signal.SIGUSR1, said
    assert "worker 1: its machine goes in 1" in said
    assert "worker 1 got a request to leave, and left" in said, said
    assert "worker 0 got a request to leave, and left" in said
    assert "stopped by SIGUSR1" in said


TOLD = """
import os, sys, torch, uneven
from uneven.integrations import spot
session = uneven.Session(preemption_notice=spot.aws(sys.argv[1]) if os.environ["RANK"] == "1" else None)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session.setup(model, optimizer)
data = torch.utils.data.TensorDataset(torch.randn(640, 4), torch.randn(640, 1))
loader = session.loader(data, global_batch_size=32)
while True:
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
