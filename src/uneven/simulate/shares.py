"""The slow loop in virtual time: reports of the virtual workers, the real decider, the split in force. Pure.

As in a real run: reports of iteration i are read at the end of iteration i + 1, and a split decided after iteration j
is in force from j + 1 + lookahead. Where workers do not keep step, reports are read as soon as the last one is there,
and the split holds from the first iteration that nobody has begun. Neither measuring nor deciding costs time here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from uneven.balance.base import Balancer
from uneven.control import Amendment, Decider, Decision, Forecaster, Report, Table
from uneven.core.apportion import proportional
from uneven.core.records import ForecastRecord, SplitRecord, StepRecord
from uneven.core.views import Limits, Observation
from uneven.predict.base import predictors
from uneven.simulate.members import Seat
from uneven.simulate.worker import Window, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the splits of a run have in common."""

    balancer: Balancer
    global_batch: int
    lookahead: int
    budget: float
    most: Callable[[int], int | None]  # rank → largest batch that it can hold


class Part(NamedTuple):
    """One worker's part of an iteration's samples: how many, and the position of the first among them."""

    batch: int
    first: int


@dataclass(slots=True)
class _Era:
    """The time of one seat order: its decider and the reports under way."""

    seat: Seat
    decider: Decider
    due: int  # the iteration at whose end reports are due
    soonest: int  # the one from whose end on a worker may call for them
    far: int  # the same for one that is far off
    reports: dict[int, Report] = field(default_factory=dict)
    launched: int = -1
    cries: dict[int, Report] = field(default_factory=dict)  # by rank, heard with the exchange of the next iteration
    cried: int = -1
    callers: set[int] = field(default_factory=set)  # since everybody's last reports
    cuts: dict[int, tuple[tuple[int, ...], list[int]]] = field(default_factory=dict)  # iteration → shares, firsts
    fingerprint: tuple[tuple[int, ...], float] = ((), 0.0)


class Shares:
    """Keeps the split of every iteration.

    Args:
        terms: of the run.
        seat: who takes part from the start.
        on_split: told about every change of the split.
        on_complaint: told about every report that was not believed: rank, iteration, text.
        on_forecast: told what a worker foretells with its report; None where nobody wants to know.
    """

    def __init__(
        self,
        terms: Terms,
        seat: Seat,
        *,
        on_split: Callable[[SplitRecord], None],
        on_complaint: Callable[[int, int, str], None],
        on_forecast: Callable[[ForecastRecord], None] | None = None,
    ) -> None:
        self._terms = terms
        self._on_split = on_split
        self._on_complaint = on_complaint
        self._on_forecast = on_forecast
        self._eras = [self._era(seat)]
        self._forecasters: dict[int, Forecaster] = {}
        self._unborn = predictors.resolve(terms.balancer.predictor)  # to read its name 10,000 times takes seconds
        self._ended = -1

    def part(self, rank: int, iteration: int) -> Part:
        """What a worker takes in an iteration."""
        era = self._eras[-1]
        if era.seat.first > iteration:
            era = next(era for era in reversed(self._eras) if era.seat.first <= iteration)
        place = era.seat.places[rank]
        cut = era.cuts.get(iteration)
        if cut is None:
            shares = era.decider.shares(iteration)
            cut = era.cuts[iteration] = shares, _firsts(era, shares)
        return Part(cut[0][place], cut[1][place])

    def measured(self, step: StepRecord) -> None:
        """What a worker has seen of its own iteration."""
        if self._eras[-1].decider.adapts:
            forecaster = self._forecaster(step.rank)
            forecaster.observe(
                Observation(
                    iteration=step.iteration,
                    samples=step.batch,
                    local_s=step.compute_s,
                    exchange_s=step.exchange_s,
                    transfer_s=step.transfer_s,
                )
            )
            lesson = forecaster.lesson()
            if lesson is not None:  # nothing runs in the background here, and learning takes no time
                forecaster.absorb(lesson.learn())

    def _forecaster(self, rank: int) -> Forecaster:
        known = self._forecasters.get(rank)
        if known is None:
            known = self._forecasters[rank] = Forecaster(copy.deepcopy(self._unborn))
            known.hidden_s = self._eras[-1].decider.hidden_s
        return known

    def ended(self, worker: Worker, iteration: int, newest: int) -> None:
        """A worker has ended an iteration.

        Args:
            newest: the furthest iteration that anybody has begun.
        """
        era = self._eras[-1]
        if not era.decider.adapts or worker.rank not in era.seat.places:
            return
        self._ended = max(self._ended, iteration)
        if era.cries and self._ended > era.cried:
            self._amend(era, max(self._ended, newest))
        if len(era.reports) == len(era.seat.members) and self._ended > era.launched:
            self._decide(era, max(self._ended, newest))
        urgent = not era.reports and self._forecaster(worker.rank).calls(iteration + 1, era.soonest, era.far)
        if urgent and iteration < era.due:  # heard in the next iteration's exchange
            era.due = iteration + 1
            if era.decider.amends:
                era.cries[worker.rank] = self._report(era, worker, iteration)
                era.callers.add(worker.rank)
                era.cried = max(era.cried, iteration)
        if iteration >= era.due and worker.rank not in era.reports:
            era.reports[worker.rank] = self._report(era, worker, iteration)
            era.launched = max(era.launched, iteration)
            if len(era.reports) == len(era.seat.members) and self._ended > era.launched:
                self._decide(era, max(self._ended, newest))

    def change(self, seat: Seat) -> None:
        """Others take part from an iteration that nobody has begun; what was learnt about those who stay is kept."""
        old = self._eras[-1]
        if old.seat.first == seat.first:
            self._eras.pop()
        era = self._era(seat)
        era.decider.load_state_dict(self._inherited(old, seat, era.decider))
        for rank in set(self._forecasters) - set(old.seat.places):
            del self._forecasters[rank]
        self._eras.append(era)

    def _era(self, seat: Seat) -> _Era:
        return _Era(seat, self._decider(seat), *(seat.first + 1,) * 3)

    def _decider(self, seat: Seat) -> Decider:
        return Decider(
            self._terms.balancer,
            seat.members,
            self._limits(seat),
            global_batch=self._terms.global_batch,
            lookahead=self._terms.lookahead,
            budget=self._terms.budget,
        )

    def _limits(self, seat: Seat) -> Limits:
        total = self._terms.global_batch
        most = (self._terms.most(rank) for rank in seat.members)
        upper = tuple(total if held is None else min(held, total) for held in most)
        return Limits(lower=(1,) * len(seat.members), upper=upper)

    def _inherited(self, old: _Era, seat: Seat, decider: Decider) -> dict[str, object]:
        """The old decider's state, for the new members: a newcomer gets the mean share and is yet to be measured."""
        state = old.decider.state_dict()
        places = [old.seat.places.get(rank) for rank in seat.members]
        weights = [math.nan if place is None else float(old.decider.newest[place]) for place in places]
        told = {
            "predicted_per_s": [None if place is None else state["predicted_per_s"][place] for place in places],
            "doubts": [0.0 if place is None else state["doubts"][place] for place in places],
        }
        if not self._terms.balancer.adapts:
            return state | told | {"shares": decider.newest}
        return state | told | {"shares": proportional(weights, self._terms.global_batch, self._limits(seat))}

    def _amend(self, era: _Era, iteration: int) -> None:
        cries, era.cries = era.cries, {}
        self._announce(era, era.decider.amend(iteration, {era.seat.places[rank]: row for rank, row in cries.items()}))

    def _decide(self, era: _Era, iteration: int) -> None:
        table = Table([era.reports[rank] for rank in era.seat.members])
        decision = era.decider.decide(iteration, era.launched, table)
        era.reports, era.callers = {}, set()
        era.soonest, era.far, era.due = decision.soonest, decision.far, decision.next
        for rank in era.seat.members:
            self._forecaster(rank).hidden_s = era.decider.hidden_s
        self._announce(era, decision)

    def _announce(self, era: _Era, outcome: Decision | Amendment) -> None:
        for complaint in outcome.complaints:
            self._on_complaint(complaint.rank, complaint.iteration, complaint.text)
        if outcome.split is not None:
            self._on_split(_by_rank(outcome.split, era.seat.members))

    def _report(self, era: _Era, worker: Worker, iteration: int) -> Report:
        window, worker.window = worker.window, Window()
        urgent = worker.rank in era.callers or self._forecaster(worker.rank).urgent
        forecast = self._forecaster(worker.rank).tell()
        if self._on_forecast is not None:
            predicted_per_s, doubt = forecast
            self._on_forecast(
                ForecastRecord(rank=worker.rank, iteration=iteration + 1, predicted_per_s=predicted_per_s, doubt=doubt)
            )
        newest = era.decider.newest
        if era.fingerprint[0] is not newest:
            era.fingerprint = newest, era.decider.fingerprint()
        rate = worker.machine.processor.rate(worker.computed_s)
        cost_s = worker.machine.report_work_s / rate if rate > 0.0 else 0.0
        return Report(
            iteration=window.iteration,
            iterations=window.iterations,
            samples=window.samples,
            local_s=window.local_s,
            exchange_s=window.exchange_s,
            transfer_s=window.transfer_s,
            control_s=cost_s,
            cost_s=cost_s,
            cpu=math.nan,
            memory=math.nan,
            predicted_per_s=forecast.predicted_per_s,
            doubt=forecast.doubt,
            urgent=float(urgent),
            deaf=0.0,
            split=era.fingerprint[1],
        )


def _by_rank(split: SplitRecord, members: tuple[int, ...]) -> SplitRecord:
    """Columns in which position i belongs to rank i, as readers expect; who is not there takes nothing."""
    ranks = members[-1] + 1
    if ranks == len(members):
        return split
    shares, speeds, predicted = [0] * ranks, [math.nan] * ranks, [math.nan] * ranks
    for place, rank in enumerate(members):
        shares[rank], speeds[rank] = split.shares[place], split.speeds_per_s[place]
        predicted[rank] = split.predicted_per_s[place]
    return replace(split, shares=tuple(shares), speeds_per_s=tuple(speeds), predicted_per_s=tuple(predicted))


def _firsts(era: _Era, shares: tuple[int, ...]) -> list[int]:
    """Where each member's samples begin; the list of another iteration with the same split is used again."""
    for known, firsts in list(era.cuts.values())[-1:]:
        if known is shares:
            return firsts
    return [0, *accumulate(shares)][:-1]
