"""A graph on real workers, in steps of a session: the weights of one process, at unequal parts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import uneven
from uneven import graph
from uneven.errors import ConfigError, DataError
from uneven.testing.ranks import RankContext, run_ranks

VERTICES, WIDTH, CLASSES, STEPS = 80, 9, 3, 4
SHARES = (6, 3, 2, 1)
CRITERION = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.1], dtype=torch.float64), ignore_index=0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = graph.SAGEConv(WIDTH, 6), graph.GCNConv(6, CLASSES)
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.2)

    def forward(self, x: Tensor, g: graph.PartedGraph) -> Tensor:
        return self.second(g.dropout(self.drop(F.relu(self.norm(self.first(x, g)))), 0.4), g)


def write(path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    ends = torch.randint(0, VERTICES - 4, (2, 300), generator=draw)
    tensors = {
        "x": torch.randn(VERTICES, WIDTH, generator=draw, dtype=torch.float64),
        "y": torch.randint(0, CLASSES, (VERTICES,), generator=draw),
        "mask": torch.rand(VERTICES, generator=draw) < 0.5,
    }
    graph.partition(torch.cat([ends, ends.flip(0)], 1), VERTICES, path=path, shares=SHARES, tensors=tensors)


def trained(me: RankContext, path: str) -> list[list[float]]:
    g = graph.load(path, rank=me.rank, size=me.size)
    session = uneven.Session(callbacks=[g])
    torch.manual_seed(0)
    model = Net().double()
    model, optimizer = session.setup(model, torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=1e-3))
    x, y, mask = g.x, g.y, g.tensor("mask")
    for _ in range(STEPS):
        with session.step(samples=g.samples):
            g.loss(CRITERION, model(x, g), y, mask).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = [one.detach().flatten().tolist() for one in (*model.parameters(), *model.buffers())]
    with torch.no_grad():
        output = g.gather(model(x, g))
    if output is not None:
        found.append(output.flatten().tolist())
    session.close()
    assert not any("forward" in vars(one) for one in model.modules())
    return found


def loaded_for_others(me: RankContext, path: str) -> None:
    session = uneven.Session(callbacks=[graph.load(path, rank=me.rank, size=3)])
    model = Net()
    with pytest.raises(ConfigError, match=r"ran as worker \d of 3, .* rank \d of 2"):
        session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    session.close()


def cut_by_speed(me: RankContext, path: str) -> list[float]:
    draw = torch.Generator().manual_seed(1)
    store = graph.partition(torch.randint(0, VERTICES, (2, 300), generator=draw), VERTICES, path=path, by="speed")
    with pytest.raises(DataError, match="failed on rank 0" if me.rank else "names vertex"):
        graph.partition(torch.full((2, 3), 9), 2 if me.rank == 0 else 10, path=path, by="speed")
    return [*store.facts.shares, store.facts.beta]


def test_workers_measure_what_each_can_do_and_one_cuts(tmp_path: Path) -> None:
    each = run_ranks(2, cut_by_speed, tmp_path / "parts")
    assert each[0] == each[1]
    assert sum(each[0][:-1]) == pytest.approx(1.0)
    assert each[0][-1] > 0.0
    with pytest.raises(ConfigError, match=r"uneven run --nproc 4"):
        graph.partition(torch.zeros(2, 3, dtype=torch.int64), path=tmp_path, by="speed")


def test_unequal_parts_train_as_one_process(tmp_path: Path) -> None:
    write(tmp_path / "parts")
    alone = trained(RankContext(0, 1), str(tmp_path / "parts"))
    for size in (2, 4):
        each = run_ranks(size, trained, tmp_path / "parts")
        for rank, found in enumerate(each):
            for mine, whole in zip(found, alone if rank == 0 else alone[:-1], strict=True):
                torch.testing.assert_close(mine, whole, rtol=0, atol=1e-10)
    run_ranks(2, loaded_for_others, tmp_path / "parts")
