"""One worker of ``uneven bench graph``, which trains under every exchange or cut in turn; rank 0 writes the results."""

import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import uneven
from uneven import graph
from uneven.graph.parts_folder import GraphStore
from uneven_bench.graph.graphs import BenchGraph, bench_graph
from uneven_bench.harness.worker import StageWorker, work


def play(me: StageWorker) -> Any:
    """Run the task."""
    return {"exact": exact, "exchanges": exchanges, "unequal": unequal}[me.task["what"]](me)


class ReleasedSAGE(nn.Module):
    """DistGNN's layer as its authors have released it: sums come before the product, so raw features travel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, g: graph.PartedGraph) -> Tensor:
        """[rows, inputs] → [rows, outputs]."""
        near, degree = g.sum_and_degree(x)
        found: Tensor = self.linear((near + x) / (degree + 1.0)[:, None])
        return found


class GraphNet(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self, first: nn.Module, second: nn.Module, dropout: float) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.dropout = dropout

    def forward(self, x: Tensor, g: graph.PartedGraph) -> Tensor:
        """[rows, features] → [rows, classes], of this worker."""
        found: Tensor = self.second(g.dropout(F.relu(self.first(x, g)), self.dropout, self.training), g)
        return found


class GraphArm:
    """A way to train: parts, exchange, layers. ``folder``: a cut graph; ``exchange``: as :func:`graph.load` takes it;
    ``released``: DistGNN's layers instead of ours."""

    def __init__(self, folder: Path, exchange: str, hidden: int, released: bool = False) -> None:
        self.g = graph.load(folder, exchange=exchange)
        self.session = uneven.Session(callbacks=[self.g])
        self._rows()
        torch.manual_seed(0)
        classes = self.y.max() + 1
        dist.all_reduce(classes, op=dist.ReduceOp.MAX)
        layers = ReleasedSAGE if released else lambda i, o: graph.SAGEConv(i, o, aggr="gcn")
        net = GraphNet(layers(self.x.shape[1], hidden), layers(hidden, int(classes)), 0.5)
        self.net, self.optimizer = self.session.setup(net, torch.optim.Adam(net.parameters(), lr=0.01))

    def _rows(self) -> None:
        self.x = self.g.x
        self.y, self.mask, self.test = self.g.y.clamp(min=0), self.g.tensor("train_mask"), self.g.tensor("test_mask")

    def rebalance(self) -> None:
        """Transfer parts, if there are more than workers."""
        if self.g.rebalance():
            self._rows()

    def step(self) -> None:
        """Train an epoch, which is one step."""
        with self.session.step(samples=self.g.samples):
            self.g.loss(F.cross_entropy, self.net(self.x, self.g), self.y, self.mask).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def accuracy(self) -> float:
        self.net.eval()
        with torch.no_grad():
            found = self.g.accuracy(self.net(self.x, self.g), self.y, self.test)
        self.net.train()
        return found

    def close(self) -> None:
        self.g.finish()
        self.session.close()


def exact(me: StageWorker) -> dict[str, float]:
    """Return the largest difference of a gradient to that of one process, by dtype."""
    task, directory = me.task, me.directory
    found = {}
    whole = bench_graph(task["graph"])
    for dtype in (torch.float64, torch.float32):
        gradients = [_gradients(whole, None, dtype), _gradients(whole, directory / "ne", dtype)]
        worst = max(float((a - b).abs().max()) for a, b in zip(*gradients, strict=True))
        found[str(dtype).removeprefix("torch.")] = worst
    return found


def _gradients(whole: BenchGraph, parts: Path | None, dtype: torch.dtype) -> list[Tensor]:
    """Return the gradients of step 1: of one process, or of all workers together."""
    g = graph.load(whole.file, rank=0, size=1) if parts is None else graph.load(parts)
    torch.manual_seed(0)
    net: Any = GraphNet(graph.SAGEConv(whole.x.shape[1], 32), graph.SAGEConv(32, whole.classes), 0.3).to(dtype)
    weights = [one.detach().clone() for one in net.parameters()]
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=1.0)
    session = None if parts is None else uneven.Session(callbacks=[g])
    if session is not None:
        net, optimizer = session.setup(net, optimizer)
    x, y, mask = g.tensor("x").to(dtype), g.y.clamp(min=0), g.tensor("train_mask")
    with nullcontext() if session is None else session.step(samples=g.samples):
        g.loss(F.cross_entropy, net(x, g), y, mask).backward()
        optimizer.step()
    if session is not None:
        session.close()
    return [a - b.detach() for a, b in zip(weights, net.parameters(), strict=True)]


def exchanges(me: StageWorker) -> dict[str, Any]:
    """Measure every exchange; DistGNN's are its authors' layers on Libra's parts. Result: ``seconds`` (exchange →
    median of an epoch), ``bytes`` (of all workers in an epoch), ``formula_bytes`` of DistGNN's, ``accuracy``."""
    task, stage, directory = me.task, me.stage, me.directory
    ways = {"exact": ("ne", "exact"), "cd-0": ("libra", "cd-0"), "cd-5": ("libra", "cd-r:r=5"), "0c": ("libra", "0c")}
    arms = {
        name: GraphArm(directory / cut, how, task["hidden"], released=name != "exact")
        for name, (cut, how) in ways.items()
    }
    stage.have((), task["mbit_per_s"])
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    sent = dict.fromkeys(arms, 0.0)
    settled, epochs = 10, max(task["epochs"], 15)  # after 2 r epochs the delayed answers arrive too
    for number in range(epochs):
        stage.say(task["graph"], number / epochs)
        for name, arm in arms.items():
            dist.barrier()
            before, began_s = arm.g.sent_bytes, time.perf_counter()
            arm.step()
            dist.barrier()
            if number >= settled:
                seconds[name].append(time.perf_counter() - began_s)
            if settled <= number < settled + 5:
                sent[name] += (arm.g.sent_bytes - before) / 5
    copies = GraphStore(directory / "libra").figures().clone_rows
    width = arms["cd-0"].x.shape[1] + 1 + task["hidden"] + 1
    found = {
        "seconds": {name: statistics.median(each) for name, each in seconds.items()},
        "bytes": {name: sum(me.gather(one)) for name, one in sent.items()},
        "formula_bytes": {"cd-0": 2 * copies * width * 4, "cd-5": 2 * copies * width * 4 / 5, "0c": 0},
        "accuracy": {name: arm.accuracy() for name, arm in arms.items()},
    }
    stage.lift()
    for arm in arms.values():
        arm.close()
    return found


def unequal(me: StageWorker) -> dict[str, Any]:
    """Return seconds of an epoch on unequal workers: on equal parts, on parts in proportion to cores, and on many parts
    that move by measured time."""
    task, stage, directory = me.task, me.stage, me.directory
    arms = {name: GraphArm(directory / name, "exact", task["hidden"]) for name in ("equal", "ne", "regions")}
    stage.have(task["cores"], ())
    taken: dict[str, list[float]] = {name: [] for name in arms}
    worked: dict[str, list[list[float]]] = {name: [] for name in arms}
    for number in range(-SETTLE, task["blocks"]):
        stage.say(task["graph"], (number + SETTLE) / (task["blocks"] + SETTLE))
        for name, arm in arms.items():
            if number < -1 and name != "regions":  # only regions settle; one block warms the others up
                continue
            dist.barrier()
            began_s, cpu_s = time.perf_counter(), time.process_time()
            for _ in range(task["each"]):
                arm.step()
            dist.barrier()
            if number < 0:
                arm.rebalance()
            else:
                taken[name].append((time.perf_counter() - began_s) / task["each"])
                worked[name].append(me.gather((time.process_time() - cpu_s) / task["each"]))
    stage.lift()
    cpu_s_of = {name: [statistics.median(one) for one in zip(*each, strict=True)] for name, each in worked.items()}
    roots = {name: me.gather(float(arm.g.part.roots)) for name, arm in arms.items()}
    for arm in arms.values():
        arm.close()
    step_s = {name: statistics.median(each) for name, each in taken.items()}
    return judged(step_s, cpu_s_of, roots, task["cores"])


SETTLE = 5  # blocks of steps before the measurement; parts may move after each


def judged(
    step_s: dict[str, float], cpu_s: dict[str, list[float]], roots: dict[str, list[float]], cores: list[float]
) -> dict[str, Any]:
    """Return the results of unequal workers. Result: ``gain`` and ``handed_over_gain`` (over equal parts), ``limit_s``
    and ``of_limit`` (of moved parts: all work all the time), ``of_limit_by_shares`` (of parts by cores),
    ``fixed_cpu_s`` (a step of a worker without any vertex: a line through all workers' processor time over their
    roots), and ``of_reachable``: of the best of any parts, as each has this fixed cost."""
    x, y = (np.concatenate([each[name] for name in step_s]) for each in (roots, cpu_s))
    slope, fixed = np.polyfit(x, y, 1)
    fixed = max(0.0, float(fixed))
    work = float(slope) * sum(roots["regions"])
    low, high = fixed / min(cores), fixed / min(cores) + (work + fixed) / min(cores)
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if sum(middle * one - fixed for one in cores) >= work else (middle, high)
    limit_s = {name: sum(each) / sum(cores) for name, each in cpu_s.items()}
    return {
        "handed_over_gain": step_s["equal"] / step_s["regions"], "gain": step_s["equal"] / step_s["ne"],
        "step_s": step_s, "worker_cpu_s": cpu_s, "roots": roots, "limit_s": limit_s["regions"],
        "of_limit": limit_s["regions"] / step_s["regions"], "of_limit_by_shares": limit_s["ne"] / step_s["ne"],
        "fixed_cpu_s": fixed, "reachable_s": high, "of_reachable": high / step_s["regions"],
    }  # fmt: skip


if __name__ == "__main__":
    work(play)
