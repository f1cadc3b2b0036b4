"""Balancers in the closed loops of ``uneven bench rivals``: ours as in a run, rivals without delay."""

import math
import random
from dataclasses import dataclass
from statistics import median

from uneven.policy.balance.balancer import Balancer, balancers
from uneven.policy.control import Controller, Decider, Forecaster, Loopback
from uneven.policy.core.views import Limits, Observation
from uneven.policy.predict import predictors
from uneven_bench.balancers.earliest import earliest
from uneven_bench.balancers.rivals import Lbb, view_of
from uneven_bench.balancers.rivals.cubic import Cubic
from uneven_bench.rivals.cases import ITERATIONS, SETTLING, RivalCase
from uneven_bench.rivals.cases import Table as Factors

REPORT_S = 0.0003  # a worker's cost of a gather of reports, about that of a run
BUDGET = 0.005


@dataclass(frozen=True, slots=True)
class RivalOutcome:
    """The times of the iterations that count."""

    iteration_s: float  # mean
    waiting: float  # part of all workers' time in which they wait
    lost: float = 0.0  # part of it that is computed and thrown away
    samples: float = 1.0  # in an update ÷ X, mean
    best: str = ""  # the best setting, if several were played

    @property
    def batch_s(self) -> float:
        """Seconds for X samples that count."""
        return self.iteration_s / self.samples


class SettledTotals:
    """Sums of iterations after settling."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._took_s: list[float] = []
        self._busy_s: list[float] = []
        self._lost_s: list[float] = []
        self._samples: list[float] = []

    def add(self, k: int, took_s: float, busy_s: float, lost_s: float = 0.0, samples: float = 1.0) -> None:
        """Add one iteration: its time, all workers' useful time, and their lost time."""
        if k >= SETTLING:
            self._took_s.append(took_s)
            self._busy_s.append(busy_s)
            self._lost_s.append(lost_s)
            self._samples.append(samples)

    def outcome(self, best: str = "") -> RivalOutcome:
        count, took_s = len(self._took_s), math.fsum(self._took_s)
        total_s = took_s * self._workers
        lost_s = math.fsum(self._lost_s)
        waiting = 1.0 - (math.fsum(self._busy_s) + lost_s) / total_s
        return RivalOutcome(took_s / count, waiting, lost_s / total_s, math.fsum(self._samples) / count, best)


def oracle(case: RivalCase) -> RivalOutcome:
    """Split with each iteration's costs known in advance: the limit of any split."""
    return _knowing(case, case.slow)


def foreseen(case: RivalCase) -> RivalOutcome:
    """Split with all costs but the noise known: the limit of any predictor."""
    return _knowing(case, case.level)


def _knowing(case: RivalCase, slow: Factors) -> RivalOutcome:
    totals, limits = SettledTotals(case.workers), Limits.uniform(case.workers, case.global_batch)
    for k in range(ITERATIONS):
        factors = slow[k].tolist()
        costs = zip(factors, case.step_s, case.launch_s, case.transfer_s[k].tolist(), strict=True)
        fixed_s = [factor * (step_s + launch_s) + moved_s for factor, step_s, launch_s, moved_s in costs]
        slopes_s = [factor * slope_s for factor, slope_s in zip(factors, case.per_sample_s, strict=True)]
        seconds = [Cubic(*cost).seconds for cost in zip(fixed_s, slopes_s, strict=True)]
        _iteration(case, k, earliest(seconds, case.global_batch, limits), totals)
    return totals.outcome()


def rival(case: RivalCase, name: str, seed: int) -> RivalOutcome:
    """Play a rival balancer: it sees every iteration of every worker, and its answer counts in the next one."""
    balancer: Balancer = Lbb(profile=profiles(case, seed)) if name == "lbb" else balancers.resolve(name)
    n, limits = case.workers, Limits.uniform(case.workers, case.global_batch)
    totals, shares = SettledTotals(n), (case.global_batch // n,) * n
    seen: tuple[Observation | None, ...] = (None,) * n
    for k in range(ITERATIONS):
        shares = balancer.split(view_of(max(0, k - 1), shares, seen, limits)).shares
        seen = _iteration(case, k, shares, totals)
    return totals.outcome()


def profiles(case: RivalCase, seed: int) -> list[Cubic]:
    """Return LBB's profiles: before the training, batches of 2, 4, 8 … samples, the median of nine with 5 % noise."""
    rng = random.Random(seed)
    sizes = [2**power for power in range(1, 9)]
    found = []
    for i in range(case.workers):
        times_s = [median(case.local_s(0, i, x) * math.exp(rng.gauss(0.0, 0.05)) for _ in range(9)) for x in sizes]
        found.append(Cubic.fit(sizes, times_s))
    return found


def looped(case: RivalCase, balancer: Balancer) -> Loopback:
    """Return the slow loop of all workers, which receives their reports without delay."""
    total, limits = case.global_batch, Limits.uniform(case.workers, case.global_batch)
    members = tuple(range(case.workers))
    decider = Decider(balancer, members, limits, global_batch=total, lookahead=0, budget=BUDGET)
    return Loopback(Controller(decider, lambda: Forecaster(predictors.resolve(balancer.predictor))))


def ours(case: RivalCase, balancer: Balancer) -> RivalOutcome:
    """Play a balancer under ``uneven``: forecasts in every worker, reports within the budget, in force two iterations
    later."""
    n, run = case.workers, looped(case, balancer)
    totals = SettledTotals(n)
    for k in range(ITERATIONS):
        for rank, seen in enumerate(_iteration(case, k, run.controller.shares(k), totals)):
            run.measured(rank, seen)
        for rank in range(n):
            run.ended(rank, k, REPORT_S)
    return totals.outcome()


def _iteration(case: RivalCase, k: int, shares: tuple[int, ...], totals: SettledTotals) -> tuple[Observation, ...]:
    """Play one BSP iteration, and return each worker's measurement."""
    local_s = [case.local_s(k, i, x) for i, x in enumerate(shares)]
    moved_s = case.transfer_s[k].tolist()
    took_s = max(map(sum, zip(local_s, moved_s, strict=True)))
    totals.add(k, took_s, math.fsum(local_s) + math.fsum(moved_s))
    return tuple(
        Observation(iteration=k, samples=x, local_s=local, exchange_s=took_s - local, transfer_s=moved)
        for x, local, moved in zip(shares, local_s, moved_s, strict=True)
    )
