"""Made-up but consistent runs, written by the real writer, for the tests of everything that reads them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uneven.journal import END, PLAN, Writer, plan_message, rank_path
from uneven.policy.core.records import (
    EventRecord,
    LoadRecord,
    RunRecord,
    ScalarRecord,
    SplitRecord,
    StepRecord,
)

START_S = 1_700_000_000.0


@dataclass(kw_only=True)
class SampleRun:
    """A BSP run of unequal workers with a known truth, in virtual time.

    Args:
        speeds_per_s: samples per second of every worker.
        balanced: split by speed from the iteration ``settle`` on, else evenly all the time.
        communicate_s: exchange time of the worker that arrives last.
        noise: standard deviation of compute time, as a part of it.
    """

    speeds_per_s: Sequence[float] = (600.0, 400.0, 200.0, 100.0)
    global_batch: int = 512
    iterations: int = 60
    balanced: bool = True
    settle: int = 5
    communicate_s: float = 0.01
    data_s: float = 0.002
    noise: float = 0.0
    per_epoch: int = 20

    def write(self, run: Path, *, first: int = 0, start_s: float = START_S, end: bool = True) -> Path:
        """Write one life of the run, from iteration ``first`` on; a second call resumes."""
        ranks = range(len(self.speeds_per_s))
        writers = [Writer(rank_path(run, rank)) for rank in ranks]
        for rank in ranks:
            writers[rank].write(
                RunRecord(
                    run=run.name,
                    rank=rank,
                    world_size=len(ranks),
                    host=f"node{rank // 8}",
                    pid=2**22 + rank,  # above the kernel's greatest
                    started_at_s=start_s,
                    settings={"balance": "lb-bsp" if self.balanced else "even"},
                )
            )
        at_s = start_s + 1.0
        writers[0].write(
            EventRecord(rank=0, iteration=first, at_s=at_s, event=PLAN, message=plan_message(self.iterations))
        )
        for iteration in range(first, self.iterations):
            at_s = self._iteration(writers, iteration, at_s)
        for rank in ranks:
            if end:
                writers[rank].write(
                    EventRecord(rank=rank, iteration=self.iterations, at_s=at_s, event=END, message="finished")
                )
            writers[rank].close()
        return run

    def shares(self, iteration: int) -> tuple[int, ...]:
        """The split that iteration uses."""
        workers = len(self.speeds_per_s)
        even = [self.global_batch // workers] * workers
        fast = [int(self.global_batch * v / sum(self.speeds_per_s)) for v in self.speeds_per_s]
        shares = fast if self.balanced and iteration >= self.settle else even
        for rank in range(self.global_batch - sum(shares)):
            shares[rank] += 1
        return tuple(shares)

    def _iteration(self, writers: Sequence[Writer], iteration: int, at_s: float) -> float:
        dice = random.Random(iteration)
        shares = self.shares(iteration)
        if iteration == 0 or shares != self.shares(iteration - 1):
            self._split(writers[0], iteration, shares)
        compute = [
            share / speed * max(0.2, 1 + dice.gauss(0, self.noise))
            for share, speed in zip(shares, self.speeds_per_s, strict=True)
        ]
        slowest_s = max(compute)
        end_s = at_s + self.data_s + slowest_s + self.communicate_s
        for rank, writer in enumerate(writers):
            writer.write(
                StepRecord(
                    rank=rank,
                    iteration=iteration,
                    epoch=iteration // self.per_epoch,
                    batch=shares[rank],
                    global_batch=self.global_batch,
                    data_s=self.data_s,
                    compute_s=compute[rank],
                    exchange_s=slowest_s - compute[rank] + self.communicate_s,
                    control_s=compute[rank] * 0.003,
                    ended_at_s=end_s,
                )
            )
            if iteration % 5 == 0:
                writer.write(self._load(rank, iteration, end_s, compute[rank] / slowest_s))
        self._scalars(writers[0], iteration, end_s, dice)
        return end_s

    def _split(self, writer: Writer, iteration: int, shares: tuple[int, ...]) -> None:
        known = tuple(self.speeds_per_s) if iteration else (math.nan,) * len(shares)
        writer.write(
            SplitRecord(
                decided_at=max(0, iteration - 2),
                iteration=iteration,
                shares=shares,
                speeds_per_s=known,
                predicted_per_s=tuple(speed * 1.05 for speed in known),
                reason="in proportion to speed" if iteration else "even, nothing measured yet",
            )
        )

    def _load(self, rank: int, iteration: int, at_s: float, busy: float) -> LoadRecord:
        return LoadRecord(
            rank=rank,
            iteration=iteration,
            at_s=at_s,
            machine_cpu=min(1.0, 0.3 + 0.6 * busy),
            machine_memory=0.42,
            process_cpu=busy * self.speeds_per_s[rank] / max(self.speeds_per_s),
            process_memory_bytes=300_000_000 + 20_000_000 * rank,
        )

    def _scalars(self, writer: Writer, iteration: int, at_s: float, dice: random.Random) -> None:
        loss = 0.1 + 2.2 * math.exp(-iteration / (0.25 * self.iterations)) + dice.gauss(0, 0.03)
        writer.write(ScalarRecord(rank=0, iteration=iteration, at_s=at_s, name="loss", value=loss))
        if (iteration + 1) % self.per_epoch == 0:
            accuracy = 1 - loss / 2.5
            writer.write(ScalarRecord(rank=0, iteration=iteration, at_s=at_s, name="accuracy", value=accuracy))
        if iteration == self.iterations // 2 and len(self.speeds_per_s) > 1:
            writer.write(
                EventRecord(
                    rank=0,
                    iteration=iteration,
                    at_s=at_s,
                    event="bad-report",
                    message="rank 1 reported a speed of nan samples/s; its last good value serves",
                )
            )
