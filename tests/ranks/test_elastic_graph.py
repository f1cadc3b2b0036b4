"""A graph whose workers die, join and leave: each step that counts is that of one process, and no part is missing."""

from __future__ import annotations

import json
from pathlib import Path

import elastic_graph
import pytest
import torch
from test_elastic import HERE, await_door, free_port, run
from test_graph_parts import write

from uneven import graph

pytestmark = pytest.mark.timeout(300)

STEPS = 14


def replayed(path: Path) -> list[torch.Tensor]:
    """Weights and running statistics after each step of one process."""
    found = []
    (net, optimizer), g = elastic_graph.model(), graph.load(path, rank=0, size=1)
    for _ in range(STEPS):
        elastic_graph.learn(g, net, g.x, g.y, g.tensor("mask"), dies=False)
        optimizer.step()
        optimizer.zero_grad()
        found.append(torch.cat([one.detach().flatten().double() for one in (*net.parameters(), *net.buffers())]))
    return found


def test_workers_die_join_and_leave(tmp_path: Path) -> None:
    """Worker 1 dies in mid-forward, 3 joins, 0 leaves: the step in which one dies changes nothing, the others count."""
    write(tmp_path / "parts")
    meeting = f"127.0.0.1:{free_port()}"
    script = [HERE / "elastic_graph.py", tmp_path, STEPS, "kill@1:3", "door@6", "leave@0:9"]
    words = ["--nproc", 3, "--elastic", "1:3", "--rdzv-endpoint", meeting, "--run-dir", tmp_path / "run"]
    with run(*words, *script) as whole:
        await_door(whole, tmp_path)
        with run("--join", meeting, "--run-dir", tmp_path / "joined", *script) as joins:
            said, said_there = whole.communicate(200)[1], joins.communicate(100)[1]
    assert (whole.returncode, joins.returncode) == (0, 0), said + said_there
    logs = {
        int(one.stem): [json.loads(line) for line in one.read_text().splitlines()] for one in tmp_path.glob("*.jsonl")
    }
    assert set(logs) == {0, 1, 2, 3}, said + said_there
    sizes = [one["size"] for one in logs[2]]
    assert sizes[:3] == [3, 3, 3]
    assert {2, 3} <= set(sizes[4:])  # without 1; with 3; without 0
    alone = replayed(tmp_path / "parts")
    counted, before = 0, None
    for step, one in enumerate(logs[2]):
        mine = torch.tensor([number for each in one["weights"] for number in each], dtype=torch.float64)
        if before is None or not torch.equal(mine, before):
            torch.testing.assert_close(mine, alone[counted], rtol=0, atol=1e-10)
            counted += 1
        for others in logs.values():
            assert all(other["weights"] == one["weights"] for other in others if other["step"] == step)
        before = mine
    assert counted == STEPS - 1  # all but the one in which 1 died
    assert len(logs[3]) >= 4
