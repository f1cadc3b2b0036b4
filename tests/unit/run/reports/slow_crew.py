"""Slow loops of all workers of a run, driven in turn on the public in-process transport."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from uneven.policy.balance import Balancer, balancers
from uneven.policy.control import Decider, Forecaster, Load
from uneven.policy.core.records import ForecastRecord, SplitRecord
from uneven.policy.core.views import Limits
from uneven.policy.predict import predictors
from uneven.run.lines.control_words import Heard
from uneven.run.lines.in_process_rendezvous import Hub, ThreadTransport
from uneven.run.measure.meter import MeterReading
from uneven.run.reports.slow import SlowLoop

X = 120


class Lying(ThreadTransport):
    """A worker's end of the line on which reports are falsified before they are sent."""

    def __init__(self, hub: Hub, rank: int, lie: Callable[[int, list[float]], Sequence[float]]) -> None:
        super().__init__(hub, rank)
        self._lie = lie
        self._count = 0

    def gather(self, row: Sequence[float]) -> Any:
        self._count += 1
        return super().gather(self._lie(self._count, list(row)))


class Crew:
    """n slow loops. ``speeds`` are samples per second; the exchange takes as long as the slowest needs."""

    def __init__(
        self,
        speeds: Sequence[float],
        balance: str | Callable[[int], Balancer] = "proportional:predictor=last",
        *,
        lookahead: int = 0,
        budget: float = 0.5,
        lies: dict[int, Callable[[int, list[float]], Sequence[float]]] | None = None,
    ) -> None:
        self.speeds = list(speeds)
        self.n = len(speeds)
        self.iteration = 0
        self.cost_s = 1e-4
        self.splits: list[list[SplitRecord]] = [[] for _ in speeds]
        self.complaints: list[list[tuple[int, int, str]]] = [[] for _ in speeds]
        self.foretold: list[list[ForecastRecord]] = [[] for _ in speeds]
        self.used: list[tuple[int, ...]] = []
        self.gathers: list[int] = []
        self.calls: list[int] = []
        hub, lies = Hub(self.n, timeout_s=0.2), lies or {}
        decided = [balancers.resolve(balance) if isinstance(balance, str) else balance(rank) for rank in range(self.n)]
        self.loops = [
            SlowLoop(
                rank,
                (Lying(hub, rank, lies[rank]) if rank in lies else hub.endpoint(rank)).gather,
                Decider(
                    decided[rank],
                    tuple(range(self.n)),
                    Limits(lower=(1,) * self.n, upper=(X,) * self.n),
                    global_batch=X,
                    lookahead=lookahead,
                    budget=budget,
                ),
                lambda rank=rank: Forecaster(predictors.resolve(decided[rank].predictor)),
                on_split=self.splits[rank].append,
                on_complaint=lambda *told, rank=rank: self.complaints[rank].append(told),
                on_forecast=self.foretold[rank].append,
            )
            for rank in range(self.n)
        ]

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            shares = {loop.shares(self.iteration) for loop in self.loops}
            assert len(shares) == 1, f"ranks use different splits in iteration {self.iteration}: {shares}"
            (now,) = shares
            assert sum(now) == X
            self.used.append(now)
            times = [share / speed for share, speed in zip(now, self.speeds, strict=True)]
            reported = []
            spent_s = self.cost_s if self.gathers[-1:] == [self.iteration - 1] else 0.0
            early = [loop.early_report(self.iteration, Load(), self.cost_s) for loop in self.loops]
            called = any(one is not None for one in early)  # as the gradients carry it
            heard = Heard(called, {rank: list(one) for rank, one in enumerate(early) if one})
            if called:
                self.calls.append(self.iteration)
            for loop, share, time_s in zip(self.loops, now, times, strict=True):
                timing = MeterReading(self.iteration, data_s=0.0, compute_s=time_s, exchange_s=max(times) - time_s)
                loop.measured(timing, share, spent_s, Load())
                reported.append(loop.tick(self.iteration, Load(), self.cost_s, heard))
            assert len(set(reported)) == 1, "ranks disagree when to gather"
            if reported[0]:
                self.gathers.append(self.iteration)
            self.iteration += 1

    def resumed(self, **changes: Any) -> Crew:
        """Another crew that goes on with this one's state, which has been to a file and back."""
        other = Crew(changes.pop("speeds", self.speeds), **changes)
        for mine, theirs in zip(self.loops, other.loops, strict=False):
            theirs.load_state_dict(json.loads(json.dumps(mine.state_dict())))
        other.iteration = self.iteration
        return other
