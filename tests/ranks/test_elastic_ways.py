"""Gradient accumulation, unused parameters and sums of one's own, while workers are lost and join: as one process."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import elastic_more
import elastic_script
import pytest
import torch
import torch.nn.functional as F
from test_elastic import HERE, await_listening, free_port

from uneven.testing.scripts import Script

pytestmark = [pytest.mark.slow(10), pytest.mark.timeout(200)]

Batch = tuple[int, int, int, int]
"""Exchange, epoch, iteration, samples of the whole batch."""


def run(*words: object) -> Script:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    return Script(["-m", "uneven.testing.forked_run", "run", *words], env=env)


def steps(folder: Path) -> dict[int, dict[Batch, list[int]]]:
    """Exchange → each of its batches, and the samples of all workers in it."""
    found: dict[int, dict[Batch, list[int]]] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            exchange, epoch, iteration, size, ids = json.loads(line)
            found.setdefault(exchange, {}).setdefault((exchange, epoch, iteration, size), []).extend(ids)
    return dict(sorted(found.items()))


def check_samples(those: dict[int, dict[Batch, list[int]]], epochs: int) -> None:
    for epoch in range(epochs):
        batches = [ids for step in those.values() for key, ids in step.items() if key[1] == epoch]
        used = Counter(one for ids in batches for one in ids)
        assert sorted(used) == list(range(elastic_script.N)), "samples were lost"
        assert set(used.values()) == {1}, "samples were used twice"


def replayed(way: str, those: dict[int, dict[Batch, list[int]]]) -> dict[str, torch.Tensor]:
    """What one process makes of the same steps: the mean over the samples of each, whatever batches they are in."""
    x, y, ids = elastic_script.dataset().tensors
    model = elastic_more.model(way)
    optimizer = torch.optim.SGD(model.parameters(), lr=elastic_script.LR, momentum=elastic_script.MOMENTUM)
    for step in those.values():
        optimizer.zero_grad()
        there = sum(len(mine) / key[3] for key, mine in step.items())
        for key, mine in step.items():
            loss = F.cross_entropy(elastic_more.output(way, model, x[mine], ids[mine]), y[mine], reduction="sum")
            (loss * len(step) / key[3] / there).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("way", ["together", "unused"])
def test_lost_before_and_after_an_exchange_and_joined(tmp_path: Path, way: str) -> None:
    """Worker 2 dies before an exchange; 1 after one that 0 has not completed; 4 joins."""
    epochs, port = 2, free_port()
    script = [HERE / "elastic_more.py", way, tmp_path, epochs, "kill@2:3", "after@1:6", "late@0:6", "door@9"]
    meeting = f"127.0.0.1:{port}"
    with run("--nproc", 4, "--elastic", "1:4", "--rdzv-endpoint", meeting, "--run-dir", tmp_path / "run", *script) as a:
        await_listening(port)
        with run("--join", meeting, "--run-dir", tmp_path / "joined", *script) as b:
            said, said_there = a.communicate(100)[1], b.communicate(100)[1]
    assert (a.returncode, b.returncode) == (0, 0), said + said_there
    assert "worker 4 has joined" in said_there, said_there
    those = steps(tmp_path)
    check_samples(those, epochs)
    one = replayed(way, those)
    models = {int(path.stem): torch.load(path) for path in tmp_path.glob("*.pt")}
    assert set(models) == {0, 3, 4}
    for name, tensor in models[0].items():
        assert all(torch.equal(tensor, other[name]) for other in models.values()), name
        assert (tensor - one[name]).abs().max() < 1e-12, name
