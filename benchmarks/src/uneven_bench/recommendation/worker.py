"""One worker of the bench, which trains until all have been warm long enough, and logs the end of each batch."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import uneven
from uneven.runtime.rundir import mark_coming, mark_ready
from uneven_bench.recommendation.model import DLRM, FlatTables, Log, ModuleTables, served
from uneven_bench.workloads.base import whole

WAYS = ("served", "held", "flat", "modules", "ddp", "torchrec", "torchrec-pipeline")
_WARM = 20  # batches
ENOUGH = "enough"  # a file that ends the window at once


class Marks:
    """The ends of this worker's batches, until all workers have been warm for ``window_s`` seconds."""

    def __init__(self, folder: Path, rank: int, size: int, window_s: float) -> None:
        self._folder = folder
        self._rank = rank
        self._size = size
        self._window_s = window_s
        self._began_s: float | None = None
        self._marks: list[tuple[float, float]] = []

    def over(self) -> bool:
        """Note the end of a batch, and return whether the window is over."""
        self._marks.append((time.time(), time.process_time()))
        if len(self._marks) == _WARM:
            (self._folder / f"warm-{self._rank}").touch()
        if self._began_s is None:
            if len(self._marks) >= _WARM and len(list(self._folder.glob("warm-*"))) == self._size:
                self._began_s = time.time()
            return False
        return time.time() - self._began_s > self._window_s or (self._folder / ENOUGH).exists()

    def write(self) -> None:
        text = json.dumps({"began_s": self._began_s, "marks": self._marks})
        (self._folder / f"marks-{self._rank}.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--window-s", type=float, default=4.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if asked.way in ("served", "held"):
        _in_session(asked)
    elif asked.way.startswith("torchrec"):
        _torchrec(asked)
    else:
        _plain(asked)


def _in_session(asked: argparse.Namespace) -> None:
    """Train with tables on servers; or with tables in this process, and all else the same."""
    remote = asked.way == "served"
    model = DLRM(served() if remote else FlatTables())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = uneven.Session(sync="shadow:easgd", balance="even")
    session.setup(model, optimizer)
    size = session.world.size
    ahead: dict[str, Any] = {"ids": lambda batch: batch[0], "ahead": 1} if remote else {}
    loader = session.loader(Log(1 << 22), asked.batch * size, shuffle=False, collate_fn=whole, **ahead)
    marks = Marks(asked.folder, session.rank, size, asked.window_s)
    _train(model, [optimizer], loader, marks)
    session.close()
    os._exit(0)  # an interpreter takes 1.5 s of processor time to end, which is half a minute with 0.05 of a core


def _torchrec(asked: argparse.Namespace) -> None:
    from uneven_bench.recommendation.torchrec_way import steps

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    marks = Marks(asked.folder, rank, size, asked.window_s)
    run = uneven.runtime.world.discover().run_directory
    assert run is not None
    mark_coming(run, rank)
    for number, _ in enumerate(steps(asked.way == "torchrec-pipeline", asked.batch, rank, size)):
        if number == 0:
            mark_ready(run, rank)
        if _voted(marks.over(), number):
            break
    marks.write()
    os._exit(0)  # its pipeline's threads would wait for batches under way


def _plain(asked: argparse.Namespace) -> None:
    if asked.way == "ddp":
        dist.init_process_group("gloo")
    world = uneven.runtime.world.discover()
    rank, size = world.rank, world.size
    tables = FlatTables() if asked.way == "flat" else ModuleTables()
    bare = DLRM(tables)
    dense = [*bare.bottom.parameters(), *bare.top.parameters()]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(dense, lr=0.01)]
    if sparse := list(tables.parameters()):
        optimizers.append(torch.optim.Adagrad(sparse, lr=0.05))
    model = DistributedDataParallel(bare) if asked.way == "ddp" else bare
    _train(model, optimizers, _batches(Log(), asked.batch, rank, size), Marks(asked.folder, rank, size, asked.window_s))


def _batches(log: Log, batch: int, rank: int, size: int) -> Iterator[Any]:
    start = rank * batch
    while True:
        yield log.__getitems__(list(range(start, start + batch)))
        start += batch * size


def _train(model: nn.Module, optimizers: list[torch.optim.Optimizer], batches: Any, marks: Marks) -> None:
    for number, (ids, numbers, clicked) in enumerate(batches):
        F.binary_cross_entropy_with_logits(model(ids, numbers), clicked).backward()
        for one in optimizers:
            one.step()
            one.zero_grad()
        if _all(marks.over(), number):
            break
    marks.write()


def _all(over: bool, number: int) -> bool:
    """Return whether all end in this step, which DDP needs: they vote in every fourth."""
    if not dist.is_initialized() or uneven.runtime.world.discover().run_directory is not None:
        return over
    return _voted(over, number)


def _voted(over: bool, number: int) -> bool:
    if number % 4:
        return False
    votes = torch.tensor(float(over))
    dist.all_reduce(votes)
    return votes.item() > 0


if __name__ == "__main__":
    main()
