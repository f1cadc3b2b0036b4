"""From everybody's reports to the split of the batch, and to the time of the next reports. Pure."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import le
from typing import Any

from uneven.balance.base import Balancer
from uneven.control.referee import Complaint, Referee
from uneven.control.reports import Report, Spacing
from uneven.core.apportion import proportional
from uneven.core.records import SplitRecord
from uneven.core.views import BalanceView, Limits, Observation
from uneven.errors import ConflictError
from uneven.predict.base import predictors
from uneven.registry import describe

_STIR = 0.2
"""Relative distance of a report from its prediction that makes the next gathers come sooner again …"""

_USUAL_TIMES = 4.0
"""… if it is also so many times what is usual for this worker: a noisy one strays without having changed."""

_USUAL_WEIGHT = 0.1

_REMEMBERED = 1024
"""Splits kept; far more than can be decided within any look-ahead."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What came of one round of reports.

    Attributes:
        split: the new split, or None if the old one stays.
        complaints: one for each report that was not believed.
        next: the iteration at whose end the next reports are due.
    """

    split: SplitRecord | None
    complaints: tuple[Complaint, ...]
    next: int


class Decider:
    """Keeps the split. The same reports get the same answer, on whichever rank it is asked.

    Args:
        balancer: decides; its ``predictor`` names the predictor that every worker gets one of.
        members: ranks, ascending; position i of limits, reports and shares belongs to the i-th.
        limits: least and greatest share of each member.
        global_batch: X.
        lookahead: how many iterations ahead of the loop the loaders draw indices.
        budget: share of the iteration time that measuring and deciding may cost.
    """

    def __init__(
        self,
        balancer: Balancer,
        members: tuple[int, ...],
        limits: Limits,
        *,
        global_batch: int,
        lookahead: int,
        budget: float,
    ) -> None:
        self._balancer = balancer
        self._members = members
        self._limits = limits
        self._global_batch = global_batch
        self._lookahead = lookahead
        self._predictors = [predictors.resolve(balancer.predictor) for _ in members]
        self._usual = [0.0] * len(members)
        self._referee = Referee()
        self._spacing = Spacing(len(members), budget)
        nothing = (None,) * len(members)
        first = balancer.split(self._view(0, nothing, self._even()))
        _rehearse(balancer, self._view(0, nothing, first.shares))
        self._splits = deque([(0, first.shares)], maxlen=_REMEMBERED)
        self.newest = first.shares

    @property
    def adapts(self) -> bool:
        """Whether reports can change anything."""
        return self._balancer.adapts and len(self._members) > 1

    def shares(self, iteration: int) -> tuple[int, ...]:
        """The split in force in ``iteration``."""
        return next(shares for first, shares in reversed(self._splits) if first <= iteration)

    def fingerprint(self) -> float:
        """Of the newest split, exact in a float64; goes into every report."""
        value = 0
        for share in self.newest:
            value = (value * 1_000_003 + share) % (2**48)
        return float(value)

    def decide(self, iteration: int, launched: int, reports: Sequence[Report]) -> Decision:
        """Take in one report of each member.

        Args:
            iteration: the one that has just ended.
            launched: the one at whose end the reports were given.

        Raises:
            ConflictError: another rank has decided another split before.
        """
        self._compare([report.split for report in reports])
        raw = [report.observation() for report in reports]
        verdict = self._referee.judge(self._members, raw, iteration=iteration)
        stirs = False
        for place, (seen, fresh) in enumerate(zip(verdict.observed, verdict.fresh, strict=True)):
            if fresh and seen is not None:
                stirs = self._observe(place, seen) or stirs
        split = self._split(iteration, verdict.observed)
        gap = self._spacing.gap(tuple(reports), quiet=not (split or stirs))
        return Decision(split, verdict.complaints, launched + gap)

    def _observe(self, place: int, seen: Observation) -> bool:
        """Show a report to its predictor; whether it strayed from the prediction unusually far."""
        predictor = self._predictors[place]
        expected = predictor.predict()
        predictor.observe(seen)
        if not expected > 0:
            return False
        strayed, usual = abs(seen.speed_per_s - expected) / expected, self._usual[place]
        self._usual[place] += _USUAL_WEIGHT * (strayed - usual)
        return strayed > max(_STIR, _USUAL_TIMES * usual)

    def _split(self, iteration: int, observed: tuple[Observation | None, ...]) -> SplitRecord | None:
        view = self._view(iteration, observed, self.newest)
        answer = self._balancer.split(view)
        if answer.shares == self.newest:
            return None
        first = iteration + 1 + self._lookahead
        self._splits.append((first, answer.shares))
        self.newest = answer.shares
        return SplitRecord(
            decided_at=iteration,
            iteration=first,
            shares=answer.shares,
            speeds_per_s=tuple(seen.speed_per_s if seen else math.nan for seen in view.observed),
            predicted_per_s=view.predicted_per_s,
            reason=answer.reason,
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
        return proportional([1.0] * len(self._members), self._global_batch, self._limits)

    def _compare(self, fingerprints: list[float]) -> None:
        if len(set(fingerprints)) > 1:
            odd = [rank for rank, value in zip(self._members, fingerprints, strict=True) if value != fingerprints[0]]
            raise ConflictError(
                f"rank {', '.join(map(str, odd))} decided another split than rank {self._members[0]}: a balancer or "
                f"predictor gave different answers to the same view; it must be deterministic (see "
                f"uneven.testing.contracts)"
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
        shares, limits = tuple(state["shares"]), self._limits
        fits = len(shares) == len(self._members) and sum(shares) == self._global_batch
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


def _rehearse(balancer: Balancer, view: BalanceView) -> None:
    """Decide once on a copy, so that what Python does at first use is not done between two steps of the training."""
    ones = (1.0,) * len(view.members)
    copy.deepcopy(balancer).split(dataclasses.replace(view, predicted_per_s=ones, doubts=ones))
