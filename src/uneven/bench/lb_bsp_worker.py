"""One worker of ``uneven bench lb-bsp``: runs every arm in turn, block by block, and rank 0 writes the results."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, TensorDataset

from uneven import rundir
from uneven.bench.arms import Arm, Block, DDPArm, ReadyMark, SessionArm, make_optimizer
from uneven.bench.workload import accuracy, first, images, loss_of, network
from uneven.core.apportion import fastest_finish
from uneven.core.cost import Affine
from uneven.core.views import Limits
from uneven.engine.connect import connect
from uneven.measure.clock import HostClock
from uneven.transport.base import Transport
from uneven.world import discover

PROGRESS = "progress.txt"
RESULTS = "results.json"
_EXCHANGES = 14
_FIXED = ("ddp", "oracle")
"""Arms on plain DDP, whose split never moves."""

_RARE = ("ddp", "even", "static")
"""Arms that are slow, and far from what the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the workers are told.

    Attributes:
        arms: name → balancer specification, or "ddp" or "oracle".
        block: iterations of a block.
        settling: blocks that do not count, in which an arm finds its split.
        rare_every: of so many rounds, the slow arms (``_RARE``) take part in the first one only.
        seconds: stop starting new rounds after so long.
        rounds: most rounds.
        profile_s: how long each worker measures its own cost for the oracle; 0 if there is none.
    """

    data: str
    global_batch: int
    width: int
    arms: dict[str, str]
    block: int
    settling: int
    rare_every: int = 1
    rounds: int
    seconds: float
    profile_s: float

    @classmethod
    def read(cls, path: Path) -> Task:
        """From JSON."""
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))


def main(directory: Path) -> None:
    """Run the task that lies in ``directory``."""
    task = Task.read(directory / "task.json")
    torch.set_num_threads(1)
    world = discover()
    connection = connect(world, timeout_s=120.0)
    line = connection.transport
    data = images(task.data)
    sessions = {
        name: SessionArm(network_for(task), _dataset(task), task.global_batch, spec, directory / name)
        for name, spec in task.arms.items()
        if spec not in _FIXED
    }
    fixed = {n: DDPArm(network_for(task), _dataset(task), _even(task)) for n, s in task.arms.items() if s in _FIXED}
    arms: dict[str, Arm] = {name: sessions.get(name) or fixed[name] for name in task.arms}
    rundir.mark_ready(directory, world.rank)  # from here on this worker gets its share of a core
    costs = _costs(task, data.train, line) if task.profile_s else []
    if costs:
        fixed["oracle"].take(_oracle(costs, task.global_batch))
    _progress(directory, line, -1, 0.0)
    for _ in range(task.settling):
        for arm in arms.values():
            if arm.settles:
                arm.block()
    blocks = _interleave(task, arms, directory, line)
    rundir.mark_through(directory, world.rank)
    _catch_up(list(arms.values()))
    result = {
        "costs": costs,
        "oracle": list(fixed["oracle"].shares) if costs else [],
        "blocks": {
            name: _gather(line, {number: asdict(one) for number, one in some.items()}) for name, some in blocks.items()
        },
        "shares": {name: list(arm.session.newest_shares) for name, arm in sessions.items()},
    }
    if world.rank == 0:
        result["accuracy"] = {name: accuracy(arm.model, data.test) for name, arm in arms.items()}
        (directory / RESULTS).write_text(json.dumps(result))
    for arm in arms.values():
        arm.close()
    connection.close()


def _costs(task: Task, train: TensorDataset, line: Transport) -> list[dict[str, float]]:
    """Every worker's cost, its own side of an exchange included."""
    computing = _gather(line, asdict(_profile(task, train)))
    exchanging_s = _gather(line, _transfer_s(task, train))
    return [{**cost, "overhead_s": cost["overhead_s"] + s} for cost, s in zip(computing, exchanging_s, strict=True)]


def _gather(line: Transport, value: Any) -> list[Any]:
    return [json.loads(text) for text in line.gather_text(json.dumps(value))]


def _dataset(task: Task) -> Dataset[Any]:
    return first(images(task.data).train, task.block * task.global_batch)


def _even(task: Task) -> tuple[int, ...]:
    size = dist.get_world_size()
    each, rest = divmod(task.global_batch, size)
    return tuple(each + (rank < rest) for rank in range(size))


def network_for(task: Task) -> torch.nn.Module:
    """The same network for every arm."""
    return network(images(task.data), task.width)


def _interleave(task: Task, arms: dict[str, Arm], directory: Path, line: Transport) -> dict[str, dict[int, Block]]:
    """Arm → round → block."""
    blocks: dict[str, dict[int, Block]] = {name: {} for name in arms}
    names = list(arms)
    started_s = time.monotonic()
    for number in range(task.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name not in _RARE or number % task.rare_every == 0:
                blocks[name][number] = arms[name].block()
        share = _gather(line, (time.monotonic() - started_s) / task.seconds)[0]
        _progress(directory, line, number + 1, max(share, (number + 1) / task.rounds))
        if share >= 1.0:
            break
    return blocks


def _catch_up(arms: list[Arm]) -> None:
    """Train every arm as long as the one that has been trained longest, or their accuracies could not be compared."""
    most = max(arm.blocks for arm in arms)
    for arm in arms:
        while arm.blocks < most:
            arm.block()


def _progress(directory: Path, line: Transport, done: int, share: float) -> None:
    if line.rank == 0:
        (directory / PROGRESS).write_text(f"{done} {share:.3f}")


def _profile(task: Task, train: TensorDataset) -> Affine:
    """This worker's own cost Γ(x) = a + b x, without any exchange: a line through the means at two batch sizes."""
    model = network_for(task)
    optimizer = make_optimizer(model)
    small, large = task.global_batch // 32, task.global_batch // 6
    seconds: dict[int, list[float]] = {small: [], large: []}
    until_s = time.monotonic() + task.profile_s
    while time.monotonic() < until_s or len(seconds[large]) < 3:
        for samples, found in seconds.items():
            x, y = (tensor[:samples] for tensor in train.tensors)
            started_s = time.perf_counter()
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(time.perf_counter() - started_s)
    low, high = (statistics.fmean(found[1:]) for found in seconds.values())
    per_sample_s = max((high - low) / (large - small), 1e-9)
    return Affine(overhead_s=max(low - per_sample_s * small, 0.0), per_sample_s=per_sample_s)


def _transfer_s(task: Task, train: TensorDataset) -> float:
    """What this worker's own side of an exchange takes: the processor time that it used there, at its pace.

    Part of the oracle's costs: a worker with a tenth of a core that is given what it can compute in time would be
    late with the exchange.
    """
    model = network_for(task)
    mark = ReadyMark(model)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    clock = HostClock()
    x, y = (tensor[: task.global_batch // 16] for tensor in train.tensors)
    found = []
    for _ in range(_EXCHANGES):
        begin = clock.mark()
        loss_of(ddp, x, y).backward()
        done = clock.mark()
        optimizer.step()
        optimizer.zero_grad()
        end = clock.mark()
        exchange_s, moved_s = done[0] - mark.ready_s, done[1] - mark.worked_s
        pace = (clock.elapsed_s(begin, end) - exchange_s) / (clock.worked_s(begin, end) - moved_s)
        found.append(min(exchange_s, moved_s * pace))
    return statistics.fmean(found[2:])


def _oracle(costs: list[dict[str, float]], total: int) -> tuple[int, ...]:
    return fastest_finish(
        [cost["overhead_s"] for cost in costs],
        [cost["per_sample_s"] for cost in costs],
        total,
        Limits.uniform(len(costs), total),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
