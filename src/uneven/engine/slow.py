"""The slow loop: reports → referee → predictors → balancer → split.

It never makes the fast loop wait. A report is given to an asynchronous gather at the end of one iteration and
its result read at the end of the next one; by then everybody has passed a gradient exchange that came after
it, so the result is there. Every rank reads the same table, so every rank decides the same, and no server is
needed. A split that was decided after iteration k is in force from k + 1 + lookahead, where ``lookahead`` is
how far ahead the loaders have drawn indices.

The loop has a budget. What it costs is part of the reports, so all ranks know the dearest one's cost and
space the gathers alike.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import le
from typing import Any

from uneven.balance.base import Balancer
from uneven.core.apportion import proportional
from uneven.core.records import SplitRecord
from uneven.core.reports import Referee
from uneven.core.views import BalanceView, Limits, Observation
from uneven.engine.reports import Report, Spacing
from uneven.engine.settings import describe
from uneven.errors import ConflictError
from uneven.measure.meter import Timing
from uneven.predict.base import predictors
from uneven.transport.base import Pending, Transport

_STIR = 0.2
"""Relative distance of a report from its prediction that makes the next gathers come sooner again."""

_REMEMBERED = 1024
"""Splits kept; far more than can be decided within any look-ahead."""


@dataclass(slots=True)
class _Window:
    """Sums over the iterations since the last report."""

    iteration: int = -1
    iterations: int = 0
    samples: int = 0
    local_s: float = 0.0
    exchange_s: float = 0.0
    transfer_s: float = 0.0
    control_s: float = 0.0

    def add(self, timing: Timing, samples: int, control_s: float) -> None:
        self.iteration = timing.iteration
        self.iterations += 1
        self.samples += samples
        self.local_s += timing.local_s
        self.exchange_s += timing.exchange_s
        self.transfer_s += timing.transfer_s
        self.control_s += control_s


@dataclass(frozen=True, slots=True)
class Load:
    """Use of the machine, 0 … 1, as it goes into a report."""

    cpu: float = math.nan
    memory: float = math.nan


class SlowLoop:
    """Keeps the split.

    Args:
        transport: the line to the other workers.
        balancer: decides; its ``predictor`` names the predictor that every worker gets one of.
        limits: least and greatest share of each rank.
        global_batch: X.
        lookahead: how many iterations ahead of the loop the loaders draw indices.
        budget: share of the iteration time that this loop may cost.
        on_split: told about every change of the split.
        on_complaint: told about every report that was not believed: rank, iteration, text.
    """

    def __init__(
        self,
        transport: Transport,
        balancer: Balancer,
        limits: Limits,
        *,
        global_batch: int,
        lookahead: int,
        budget: float,
        on_split: Callable[[SplitRecord], None],
        on_complaint: Callable[[int, int, str], None],
    ) -> None:
        self._transport = transport
        self._balancer = balancer
        self._limits = limits
        self._global_batch = global_batch
        self._lookahead = lookahead
        self._on_split = on_split
        self._on_complaint = on_complaint
        self._predictors = [predictors.resolve(balancer.predictor) for _ in range(transport.size)]
        self._referee = Referee()
        self._members = tuple(range(transport.size))
        self._spacing = Spacing(transport.size, budget)
        self._window = _Window()
        self._pending: Pending | None = None
        self._next: int | None = None  # the first iteration, also after a resume, warms up and is not reported
        self._warm = False
        self._launched = 0
        first = balancer.split(self._view(0, (None,) * transport.size, self._even()))
        _rehearse(balancer, self._view(0, (None,) * transport.size, first.shares))
        self._splits = deque([(0, first.shares)], maxlen=_REMEMBERED)
        self.newest = first.shares

    def shares(self, iteration: int) -> tuple[int, ...]:
        """The split in force in ``iteration``."""
        return next(shares for first, shares in reversed(self._splits) if first <= iteration)

    def measured(self, timing: Timing, samples: int, control_s: float) -> None:
        """One iteration's timing has become readable; padded batches and the first iteration do not count.

        Args:
            control_s: what measuring and deciding cost in it.
        """
        warm, self._warm = self._warm, True
        if samples > 0 and warm:
            self._window.add(timing, samples, control_s)

    def tick(self, iteration: int, load: Load, cost_s: float) -> bool:
        """The end of ``iteration``; called on every rank alike.

        Args:
            cost_s: what this rank's last exchange of reports cost the fast loop, from giving a report to deciding.

        Returns:
            Whether a report was given.
        """
        if not self._balancer.adapts or self._transport.size == 1:
            return False
        if self._pending is not None:
            rows, self._pending = self._pending.result(), None
            self._decide(iteration, tuple(Report(*row) for row in rows))
        if self._next is None:
            self._next = iteration + 1
        if iteration >= self._next:
            self._pending = self._transport.gather(self._report(load, cost_s))
            self._launched = iteration
            return True
        return False

    def _report(self, load: Load, cost_s: float) -> Report:
        window, self._window = self._window, _Window()
        return Report(
            iteration=window.iteration,
            iterations=window.iterations,
            samples=window.samples,
            local_s=window.local_s,
            exchange_s=window.exchange_s,
            transfer_s=window.transfer_s,
            control_s=window.control_s,
            cost_s=cost_s,
            cpu=load.cpu,
            memory=load.memory,
            split=_fingerprint(self.newest),
        )

    def _decide(self, iteration: int, reports: tuple[Report, ...]) -> None:
        self._compare([report.split for report in reports])
        raw = [report.observation() for report in reports]
        verdict = self._referee.judge(self._members, raw, iteration=iteration)
        for complaint in verdict.complaints:
            self._on_complaint(complaint.rank, complaint.iteration, complaint.text)
        stirs = False
        for predictor, seen, fresh in zip(self._predictors, verdict.observed, verdict.fresh, strict=True):
            if fresh and seen is not None:
                expected = predictor.predict()
                stirs = stirs or abs(seen.speed_per_s - expected) > _STIR * expected
                predictor.observe(seen)
        view = self._view(iteration, verdict.observed, self.newest)
        split = self._balancer.split(view)
        changed = split.shares != self.newest
        if changed:
            self._put(iteration, view, split.shares, split.reason)
        self._next = self._launched + self._spacing.gap(reports, quiet=not (changed or stirs))

    def _put(self, iteration: int, view: BalanceView, shares: tuple[int, ...], reason: str) -> None:
        first = iteration + 1 + self._lookahead
        self._splits.append((first, shares))
        self.newest = shares
        speeds = tuple(seen.speed_per_s if seen else math.nan for seen in view.observed)
        self._on_split(
            SplitRecord(
                decided_at=iteration,
                iteration=first,
                shares=shares,
                speeds_per_s=speeds,
                predicted_per_s=view.predicted_per_s,
                reason=reason,
            )
        )

    def _view(
        self, iteration: int, observed: tuple[Observation | None, ...], shares: tuple[int, ...]
    ) -> BalanceView:
        return BalanceView(
            iteration=iteration,
            global_batch=self._global_batch,
            members=self._members,
            shares=shares,
            observed=observed,
            predicted_per_s=tuple(predictor.predict() for predictor in self._predictors),
            limits=self._limits,
            doubts=tuple(predictor.doubt() for predictor in self._predictors),
        )

    def _even(self) -> tuple[int, ...]:
        size = self._transport.size
        return proportional([1.0] * size, self._global_batch, self._limits)

    def _compare(self, fingerprints: list[float]) -> None:
        if len(set(fingerprints)) > 1:
            odd = [rank for rank, value in enumerate(fingerprints) if value != fingerprints[0]]
            raise ConflictError(
                f"rank {', '.join(map(str, odd))} decided another split than rank 0: a balancer or predictor gave "
                f"different answers to the same view; it must be deterministic (see uneven.testing.contracts)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Shares, predictors, referee and balancer, as plain data."""
        return {
            "kind": self._kind(),
            "shares": list(self.newest),
            "predictors": [predictor.state_dict() for predictor in self._predictors],
            "referee": self._referee.state_dict(),
            "balancer": self._balancer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another run stopped; one with other workers, batch, limits or balancer starts afresh."""
        if self._pending is not None:  # a report of iterations that are now undone; everybody has sent it
            self._pending.result()
        self._pending, self._next, self._window = None, None, _Window()
        shares, limits = tuple(state["shares"]), self._limits
        fits = len(shares) == self._transport.size and sum(shares) == self._global_batch
        fits = fits and all(map(le, limits.lower, shares)) and all(map(le, shares, limits.upper))
        if fits and state["kind"] == self._kind():
            self.newest = shares
            for predictor, learnt in zip(self._predictors, state["predictors"], strict=True):
                predictor.load_state_dict(learnt)
            self._referee.load_state_dict(state["referee"])
            self._balancer.load_state_dict(state["balancer"])
        self._splits = deque([(0, self.newest)], maxlen=_REMEMBERED)

    def _kind(self) -> list[str]:
        """Whose state it is: what one balancer learnt says nothing to another."""
        return [describe(self._balancer), self._balancer.predictor]


def _fingerprint(shares: tuple[int, ...]) -> float:
    value = 0
    for share in shares:
        value = (value * 1_000_003 + share) % (2**48)  # exact in a float64
    return float(value)


def _rehearse(balancer: Balancer, view: BalanceView) -> None:
    """Decide once on a copy, so that what Python does at first use is not done between two steps of the training."""
    ones = (1.0,) * len(view.members)
    copy.deepcopy(balancer).split(dataclasses.replace(view, predicted_per_s=ones, doubts=ones))
