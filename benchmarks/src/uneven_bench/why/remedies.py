"""Is a remedy worth what ``uneven why`` promises? Each is really done, on machines with limited processors and links.

A worker of ``uneven bench why``: it records a plain DDP loop, trains the same loop without the measurement, and then
with each remedy, block by block.
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import uneven
from uneven import journal
from uneven.why.pure.remedies import simulation
from uneven.why.start import attach
from uneven_bench.harness.show import Progress
from uneven_bench.harness.worker import StageWorker, staged, work
from uneven_bench.why.body import compute

WORKERS, BATCH = 3, 8  # samples of each worker
_SETTLE = 48  # steps of a session before those that count: it looks for its shares
_LOCAL = "with local:every=8"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyWorld:
    """Machines of which one is slower."""

    slow: int  # its rank
    cores: tuple[float, ...]  # quotas; empty if the machines' devices differ instead
    sample_s: tuple[float, ...]  # of each worker: processor time, or the time in which its device computes
    mbit_per_s: tuple[float, ...]  # of the links; empty if unlimited
    parameters: int  # of the model
    steps: int  # of a block

    @property
    def fast(self) -> int:
        """A rank that is not slow."""
        return (self.slow + 1) % WORKERS

    @property
    def texts(self) -> tuple[str, ...]:
        """The remedies, as ``uneven plan --what-if`` writes them."""
        faster = f"rank {self.slow} as fast as rank {self.fast}"
        return faster, f"without rank {self.slow}", "with lb-bsp", _LOCAL, f"with lb-bsp and {_LOCAL}"


def drawn(seed: int, count: int, steps: int) -> list[RemedyWorld]:
    """Return the machines of a seed: in turn with other devices and slow links, and with other quotas."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        slow, times, fast = rng.randrange(WORKERS), rng.uniform(1.8, 3.5), rng.uniform(0.25, 0.35)
        link = rng.uniform(20.0, 60.0)
        slower = [times if rank == slow else 1.0 for rank in range(WORKERS)]
        devices = number % 2 == 0
        made.append(
            RemedyWorld(
                slow=slow,
                cores=() if devices else tuple(fast / one for one in slower),
                sample_s=tuple(0.002 * one for one in slower) if devices else (0.001,) * WORKERS,
                mbit_per_s=(link,) * WORKERS if devices else (),
                parameters=40_000,
                steps=steps,
            )
        )
    return made


def compared(world: RemedyWorld, folder: Path, seed: int, progress: Progress) -> dict[str, Any]:
    """Play the remedies of these machines. Result: ``as_it_was`` and, by text, ``remedies``: each with the expected
    and measured values, and the error, expected ÷ measured − 1."""
    task = {"world": asdict(world), "what": "remedies"}
    measured = staged(folder, __name__, task, WORKERS, isolated=True, said=progress)
    promised = simulation("recorded", list(journal.read(folder / "recorded").records()), world.texts, seed)
    plain = median(measured["plain"])
    gains = {one.words: median(measured[one.words]) / plain for one in promised.played[1:]}
    remedies = {one.words: _compared(promised.gain(one), gains[one.words]) for one in promised.played[1:]}
    return {"as_it_was": _compared(promised.played[0].samples_per_s, plain), "remedies": remedies}


def _compared(expected: float, measured: float) -> dict[str, float]:
    return {"expected": round(expected, 3), "measured": round(measured, 3), "error": round(expected / measured - 1, 3)}


class _Samples(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(16)


class _Model(nn.Module):
    """A model that takes the same time for each sample."""

    def __init__(self, world: RemedyWorld, rank: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, world.parameters // 17), nn.ReLU())
        self._sample_s = world.sample_s[rank]
        self._wait = compute if world.cores else time.sleep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._wait(self._sample_s * len(x))
        return self.layers(x)


class _Loop:
    """The loops of one worker on these machines."""

    def __init__(self, me: StageWorker, world: RemedyWorld) -> None:
        self._me = me
        self._world = world
        self._others = dist.new_group([rank for rank in range(WORKERS) if rank != world.slow])

    def plain(self, *, probed: bool = False) -> float:
        """Return the samples per second of all workers under plain DDP."""
        return self._ddp(self._me.rank, BATCH, None, WORKERS, probed=probed)

    def faster(self) -> float:
        """Give the slow worker a machine as fast as the others'."""
        world = self._world
        if world.cores:
            self._me.stage.have((world.cores[world.fast],) * WORKERS, world.mbit_per_s)
        try:
            return self._ddp(world.fast, BATCH, None, WORKERS)
        finally:
            self._me.stage.have(world.cores, world.mbit_per_s)

    def without(self) -> float:
        """Leave the slow worker out; the others share the global batch."""
        if self._me.rank == self._world.slow:
            dist.barrier()
            dist.barrier()
            return 0.0
        return self._ddp(self._me.rank, BATCH * WORKERS // (WORKERS - 1), self._others, WORKERS - 1)

    def session(self, balance: str, sync: str, name: str) -> float:
        world, total = self._world, BATCH * WORKERS
        model = _Model(world, self._me.rank)
        with uneven.Session(balance=balance, sync=sync, run_dir=self._me.directory / name) as session:
            model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
            data = _Samples(total * (_SETTLE + world.steps + 1))
            return _timed(session.loader(data, global_batch_size=total), model, optimizer, _SETTLE, world.steps, total)

    def _ddp(self, device: int, batch: int, group: Any, workers: int, *, probed: bool = False) -> float:
        """Train with the device of a rank; return the samples per second of all ``workers`` in the group."""
        world = self._world
        model = _Model(world, device)
        wrapped = DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        probe = attach(self._me.directory / "recorded") if probed else None
        loader = DataLoader(_Samples(batch * (world.steps + 5)), batch_size=batch)
        dist.barrier()
        per_s = _timed(loader, wrapped, optimizer, 4, world.steps, batch * workers)
        if probe is not None:
            probe.close()
        dist.barrier()
        return per_s


def _timed(batches: Iterable[Any], model: nn.Module, optimizer: Any, first: int, steps: int, total: int) -> float:
    """Train, and return the samples per second of the steps after the first ones."""
    ends_s = list[float]()
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        ends_s.append(time.perf_counter())
    return steps * total / (ends_s[first + steps - 1] - ends_s[first - 1])


def play(me: StageWorker) -> dict[str, Any]:
    """Play the remedies of the task. One of them makes the slow machine fast; under the others it stays slow."""
    world = RemedyWorld(**me.task["world"])
    loop = _Loop(me, world)
    faster, without, shares, local, both = world.texts
    arms: dict[str, Callable[[], float]] = {
        faster: loop.faster,
        without: loop.without,
        shares: lambda: loop.session("lb-bsp", "bsp", "shares"),
        local: lambda: loop.session("even", "local:every=8", "local"),
        both: lambda: loop.session("lb-bsp", "local:every=8", "both"),
    }
    me.stage.have(world.cores, world.mbit_per_s)
    loop.plain(probed=True)
    found: dict[str, list[float]] = {"plain": []}
    for number, (text, arm) in enumerate(arms.items()):
        me.stage.say(text, number / len(arms))
        if number % 2 == 0:
            found["plain"].append(loop.plain())
        found[text] = [max(me.gather(arm()))]
    me.stage.lift()
    return found


if __name__ == "__main__":
    work(play)
