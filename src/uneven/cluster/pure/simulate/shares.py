"""The slow loop in virtual time: a real run's controller, driven by the virtual workers' events.

As in a real run, reports of iteration i are read at the end of iteration i + 1. A split decided after iteration j is in
force from j + 1 + lookahead. Asynchronous workers' reports are read when the last one arrives, and the split holds from
the first iteration that none has started. Measuring and deciding cost no time here.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from uneven.cluster.pure.simulate.members import MembersSince
from uneven.cluster.pure.simulate.virtual_worker import Worker
from uneven.policy.balance.balancer import Balancer
from uneven.policy.control import Complaint, Controller, Decider, Forecaster, Loopback
from uneven.policy.core.records import ForecastRecord, SplitRecord, StepRecord
from uneven.policy.core.views import Limits, Observation
from uneven.policy.predict.predictor import predictors


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The constants of a run's splits."""

    balancer: Balancer
    global_batch: int
    lookahead: int
    budget: float
    most: Callable[[int], int | None]  # rank → largest batch that it can hold


class BatchSlice(NamedTuple):
    """One worker's part of an iteration: number of samples, and the position of the first."""

    batch: int
    first: int


@dataclass(slots=True)
class _Cuts:
    """The shares and first positions by iteration, for one membership."""

    present: MembersSince
    made: dict[int, tuple[tuple[int, ...], list[int]]] = field(default_factory=dict)


class Shares:
    """The split of every iteration, with callbacks for changes, rejected reports and forecasts."""

    def __init__(
        self,
        terms: Terms,
        present: MembersSince,
        *,
        on_split: Callable[[SplitRecord], None],
        on_complaint: Callable[[int, int, str], None],
        on_forecast: Callable[[ForecastRecord], None] | None = None,
    ) -> None:
        self._terms = terms
        self._on_split = on_split
        self._on_complaint = on_complaint
        self._on_forecast = on_forecast
        self._cuts = [_Cuts(present)]
        unborn = predictors.resolve(
            terms.balancer.predictor
        )  # copied below: parsing its name 10,000 times takes seconds
        decider = Decider(
            terms.balancer,
            present.members,
            self._limits(present),
            global_batch=terms.global_batch,
            lookahead=terms.lookahead,
            budget=terms.budget,
        )
        self._controller = Controller(decider, lambda: Forecaster(copy.deepcopy(unborn)))
        self._loopback = Loopback(self._controller)

    def part(self, rank: int, iteration: int) -> BatchSlice:
        cuts = self._cuts[-1]
        if cuts.present.first > iteration:
            cuts = next(cuts for cuts in reversed(self._cuts) if cuts.present.first <= iteration)
        place = cuts.present.places[rank]
        cut = cuts.made.get(iteration)
        if cut is None:
            shares = self._controller.shares(iteration)
            cut = cuts.made[iteration] = shares, _firsts(cuts, shares)
        return BatchSlice(cut[0][place], cut[1][place])

    def measured(self, step: StepRecord, samples: int) -> None:
        """Record a worker's own iteration; ``samples`` includes those that came too late to count."""
        if self._controller.adapts:
            seen = Observation(
                iteration=step.iteration,
                samples=samples,
                local_s=step.compute_s,
                exchange_s=step.exchange_s,
                transfer_s=step.transfer_s,
            )
            self._loopback.measured(step.rank, seen, late=step.batch < samples)

    def ended(self, worker: Worker, iteration: int, newest: int) -> None:
        """Record that a worker has ended an iteration; ``newest`` is the furthest that any has started."""
        if not self._controller.adapts:
            return
        rate = worker.machine.processor.rate(worker.computed_s)
        cost_s = worker.machine.report_work_s / rate if rate > 0.0 else 0.0
        for instruction in self._loopback.ended(worker.rank, iteration, cost_s, newest):
            if isinstance(instruction, SplitRecord):
                self._on_split(instruction)
            elif isinstance(instruction, Complaint):
                self._on_complaint(instruction.rank, instruction.iteration, instruction.text)
            elif self._on_forecast is not None:
                self._on_forecast(instruction)

    def change(self, present: MembersSince) -> None:
        """Change the members from an iteration that none has started; what was learned of those that stay is kept."""
        if self._cuts[-1].present.first == present.first:
            self._cuts.pop()
        self._cuts.append(_Cuts(present))
        self._controller.members_changed(present.first, present.members, self._limits(present))

    def _limits(self, present: MembersSince) -> Limits:
        total = self._terms.global_batch
        most = (self._terms.most(rank) for rank in present.members)
        upper = tuple(total if held is None else min(held, total) for held in most)
        return Limits(lower=(1,) * len(present.members), upper=upper)


def _firsts(cuts: _Cuts, shares: tuple[int, ...]) -> list[int]:
    # Iterations with the same split share one list: with thousands of workers a new one each time is expensive.
    last = next(reversed(cuts.made.values()), None)
    if last is not None and last[0] is shares:
        return last[1]
    return [0, *accumulate(shares)][:-1]
