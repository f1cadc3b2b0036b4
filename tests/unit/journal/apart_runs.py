"""Made-up runs of workers that take steps of their own, whose truth is known, for everything that reads journals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sample_runs import START_S

from uneven.journal import END, PLAN, Writer, plan_message, rank_path
from uneven.policy.core.records import EventRecord, Record, RunRecord, ScalarRecord, StepRecord

BATCH = 10
"""Samples in every step of every worker."""


@dataclass(kw_only=True)
class ApartRun:
    """Each worker takes its steps back to back until the time is over; nobody waits.

    Args:
        steps_s: of a step of each worker, an eighth of it exchange.
        for_s: how long; what each has finished by then is in the journal.
    """

    steps_s: Sequence[float] = (0.25, 0.5, 2.0)
    for_s: float = 60.0
    settings: dict[str, Any] = field(default_factory=lambda: {"sync": "shadow:easgd", "balance": "even"})

    @property
    def counts(self) -> list[int]:
        """Steps of each worker."""
        return [int(self.for_s / step_s) for step_s in self.steps_s]

    @property
    def samples_per_s(self) -> float:
        """What all of them take."""
        return BATCH * sum(self.counts) / self.for_s

    @property
    def global_batch(self) -> int:
        return BATCH * len(self.steps_s)

    def records(self, rank: int, *, first: int = 0, start_s: float = START_S) -> list[Record]:
        """Everything that one worker has written in a life that begins with its own step ``first``."""
        step_s = self.steps_s[rank]
        found: list[Record] = [
            RunRecord(
                run="apart", rank=rank, world_size=len(self.steps_s), host="here", pid=2**22 + rank,
                started_at_s=start_s - 1.0, settings=self.settings,
            )
        ]  # fmt: skip
        if rank == 0:
            planned = plan_message(100)
            found.append(EventRecord(rank=0, iteration=first, at_s=start_s, event=PLAN, message=planned))
        for number in range(self.counts[rank]):
            ended_s = start_s + (number + 1) * step_s
            found.append(
                ScalarRecord(
                    rank=rank, iteration=first + number, at_s=ended_s - 0.01, name="loss", value=float(rank),
                    weight=BATCH,
                )
            )  # fmt: skip
            found.append(
                StepRecord(
                    rank=rank, iteration=first + number, epoch=0, batch=BATCH, global_batch=self.global_batch,
                    data_s=0.125 * step_s, compute_s=0.75 * step_s, exchange_s=0.125 * step_s, control_s=0.0,
                    ended_at_s=ended_s,
                )
            )  # fmt: skip
        return found

    def write(self, run: Path, *, end: bool = True) -> Path:
        """The journal of one life."""
        for rank in range(len(self.steps_s)):
            writer = Writer(rank_path(run, rank))
            writer.write(*self.records(rank))
            if end:
                over_s = START_S + self.for_s
                writer.write(EventRecord(rank=rank, iteration=0, at_s=over_s, event=END, message="over"))
            writer.close()
        return run
