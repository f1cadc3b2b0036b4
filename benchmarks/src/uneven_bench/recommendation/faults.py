"""A table shard that is killed during a run, and one that writes gigabytes while a trainer trains."""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

from uneven.embedding import EmbeddingBagCollection, RowwiseAdagrad, Table
from uneven.embedding.table_host import PROGRAM, TABLES
from uneven.errors import LaunchError
from uneven.runtime.messages.process import ShardKeeper
from uneven.runtime.world import RUN_VARIABLE
from uneven_bench.harness.killed import strike
from uneven_bench.harness.program import wait_for
from uneven_bench.harness.show import Told
from uneven_bench.recommendation.clicks import Clicks, clicks
from uneven_bench.recommendation.model import DIM, ClickNet
from uneven_bench.recommendation.quality import BATCH, HELD

KILLS, SAVE_EVERY_S = 3, 1.0
_GIVES_UP_S = 60.0
_WARM = 20  # batches in which servers load their compiled code
_RATE = RowwiseAdagrad(lr=0.05)
_LOOKED_UP = 26  # rows of a sample, for the tables of gigabytes


@contextmanager
def table_servers(shards: int) -> Iterator[ShardKeeper]:
    """Start table servers for a trainer in this process."""
    before = os.environ.get(RUN_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="uneven-tables-") as folder:
        os.environ[RUN_VARIABLE] = folder
        try:
            with ShardKeeper(Path(folder) / TABLES, shards, 1, program=PROGRAM) as keeper:
                yield keeper
        finally:
            if before is None:
                del os.environ[RUN_VARIABLE]
            else:
                os.environ[RUN_VARIABLE] = before


class LogTrainer:
    """One trainer, with its tables on the servers of this run, and the batches of one pass over the log. ``more``: for
    the tables."""

    def __init__(self, data: Clicks, seed: int, dtype: str = "float32", **more: Any) -> None:
        self._data = data
        self._held = len(data.clicked) // HELD
        self._bases = np.cumsum([0, *data.rows[:-1]])
        order = self._held + np.random.default_rng(seed).permutation(len(data.clicked) - self._held)
        self.batches = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)]
        torch.manual_seed(seed)
        self._net = ClickNet(len(data.rows), data.numbers.shape[1])
        self._dense = torch.optim.Adagrad(self._net.parameters(), lr=0.01)
        tables = [Table(many, DIM, f"t{place}", dtype=dtype) for place, many in enumerate(data.rows)]
        self.tables = EmbeddingBagCollection(tables, optimizer=_RATE, seed=seed, **more)

    def pooled(self, rows: Any) -> Tensor:
        """Return the looked-up rows of these samples, (n, fields · dim)."""
        found: Tensor = self.tables(torch.from_numpy(self._data.ids[rows].astype(np.int64) - self._bases)).values()
        return found

    def _loss(self, rows: Any) -> Tensor:
        score = self._net(self.pooled(rows), torch.from_numpy(self._data.numbers[rows]))
        return F.binary_cross_entropy_with_logits(score, torch.from_numpy(self._data.clicked[rows]))

    def step(self, rows: Any) -> None:
        self._loss(rows).backward()
        self._dense.step()
        self._dense.zero_grad()

    @torch.no_grad()
    def log_loss(self) -> float:
        """Return the mean log loss of the samples that are held out."""
        self.tables.flush()
        starts = range(0, self._held, 4096)
        return float(np.mean([self._loss(np.arange(at, min(at + 4096, self._held))).item() for at in starts]))


@dataclass(slots=True)
class OneRun:
    """One pass over the log."""

    log_loss: float = float("nan")
    took_s: list[float] = field(default_factory=list)  # of each batch
    broken: list[int] = field(default_factory=list)  # the longest batch after each kill, which waited for the shard
    lost: int = 0
    restarts: int = 0

    @property
    def per_s(self) -> float:
        """Examples a second over all batches except the first, which warm up, and those that waited for a shard."""
        counted = [one for at, one in enumerate(self.took_s) if at >= _WARM and at not in self.broken]
        return BATCH / statistics.fmean(counted)


def killed(rounds: int, samples: int, told: Told) -> dict[str, Any]:
    """Kill a shard of two three times in a run, and compare with an undisturbed run, in turns. Result: ``killed``:
    ``logloss_vs_undisturbed`` (relative), ``eps_outside`` (÷ the undisturbed run's; each round), ``away_s`` (median of
    the batches that waited for a shard), ``lost`` (updates, by run), ``updates`` (of a run)."""
    data, found = clicks(samples), []
    for number in range(rounds):
        pair: dict[int, OneRun] = {}
        for place, kills in enumerate((0, KILLS) if number % 2 == 0 else (KILLS, 0)):  # each goes first in turn
            told(f"{kills} kills, round {number + 1} of {rounds}", (2 * number + place) / rounds / 2)
            pair[kills] = _one_pass(data, number, kills)
        found.append((pair[0], pair[KILLS]))
    away_s = [hit.took_s[at] for _, hit in found for at in hit.broken]
    return {
        "killed": {
            "logloss_vs_undisturbed": statistics.median(hit.log_loss / calm.log_loss - 1 for calm, hit in found),
            "eps_outside": [hit.per_s / calm.per_s for calm, hit in found],
            "away_s": statistics.median(away_s),
            "lost": [hit.lost for _, hit in found],
            "updates": 2 * len(found[0][1].took_s),
            "kills": KILLS,
            "save_every_s": SAVE_EVERY_S,
        }
    }


def _one_pass(data: Clicks, seed: int, kills: int) -> OneRun:
    """Run two shards and one trainer; each batch asks both."""
    run = OneRun()
    with table_servers(2) as servers:
        trainer = LogTrainer(data, seed, save_every_s=SAVE_EVERY_S)
        batches, tables = trainer.batches, trainer.tables
        struck = {len(batches) * one // (kills + 1): one % 2 for one in range(1, kills + 1)}
        for at, rows in enumerate(batches):
            if at in struck:
                # Without a file on the disk a shard would begin from nothing.
                wait_for(lambda: tables.stats().counts["saved"] > 0, "the first save of a shard", _GIVES_UP_S)
                strike([servers.pids()[struck[at]]], random.Random(at))
            began_s = time.perf_counter()
            trainer.step(rows)
            run.took_s.append(time.perf_counter() - began_s)
        # The batch of a kill need not wait: rows of a shard that has died stay readable until its worker posts to it.
        for begin, end in pairwise([*struck, len(batches)]):
            run.broken.append(max(range(begin, end), key=run.took_s.__getitem__))
        run.log_loss = trainer.log_loss()
        stats = tables.stats()
        run.lost, run.restarts = stats.lost, stats.restarts
        tables.close()
    if run.restarts != kills:
        raise LaunchError(f"{kills} shards were killed, and {run.restarts} were found to have been started again")
    return run


def checkpoint(gigabytes: float, window_s: float, told: Told) -> dict[str, Any]:
    """Save one shard with tables of ``gigabytes`` while one trainer trains. Result: ``checkpoint``: ``gigabytes`` of
    rows, ``took_s``, ``more_bytes`` (the kernel's peak of the shard's process during the save, above its use before),
    ``eps_while`` (examples a second during the save ÷ before and after), ``stall`` (the part of a minute's examples
    that a save a minute costs)."""
    many = int(gigabytes * 2**30 / 4 / 16)
    draw = np.random.default_rng(0)
    with table_servers(1) as servers, tempfile.TemporaryDirectory(prefix="uneven-tables-saved-") as folder:
        told("make the tables", 0.0)
        tables = EmbeddingBagCollection(
            [Table(many, 16, "t", feature_names=tuple(f"f{i}" for i in range(_LOOKED_UP)))], optimizer=_RATE
        )
        net = torch.nn.Linear(16 * _LOOKED_UP, 1)

        def batch() -> None:
            ids = torch.from_numpy(draw.integers(0, many, (BATCH, _LOOKED_UP)))
            net(tables(ids).values()).square().mean().backward()

        for _ in range(50):
            batch()
        shard = psutil.Process(servers.pids()[0])
        ends: list[float] = []

        def save() -> tuple[float, float]:
            begun_s = time.perf_counter()
            tables.save_checkpoint(folder)
            return begun_s, time.perf_counter()

        began_s, saving, held = time.perf_counter(), None, 0
        with ThreadPoolExecutor(1) as saver:
            while saving is None or not saving.done() or time.perf_counter() < saving.result()[1] + window_s:
                batch()
                ends.append(time.perf_counter())
                if saving is None and ends[-1] > began_s + window_s:
                    told("save during the training", 0.5)
                    held = _peak_from_now(shard.pid)
                    saving = saver.submit(save)
        begin_s, end_s = saving.result()
        most = _peak_bytes(shard.pid)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        tables.close()
    during, took_s = sum(begin_s < one <= end_s for one in ends), end_s - begin_s
    eps_while = during / took_s / ((len(ends) - during) / (ends[-1] - began_s - took_s))
    return {
        "checkpoint": {
            "gigabytes": 4 * 16 * many / 2**30,
            "written_gigabytes": size / 2**30,
            "took_s": took_s,
            "more_bytes": most - held,
            "eps_while": eps_while,
            "stall": max(0.0, 1 - eps_while) * took_s / 60.0,
        }
    }


def _peak_from_now(pid: int) -> int:
    """Return the bytes that a process holds, and reset the kernel's peak."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    return _peak_bytes(pid)


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
