"""``uneven bench closed-loop``: predictors compared where the truth is known.

Workers with fixed affine costs and noise of known size are balanced for 110 iterations in virtual time; what counts
is the time of the best integer split ÷ the time of the split in force, both without the noise. The same balancers
and predictors as in a run, nothing else: seconds, not minutes, and the same figures on every machine.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven.policy.balance import balancers
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven.policy.predict import predictors
from uneven_bench.balancers.rivals.fastest import fastest_finish

GLOBAL_BATCH = 256
ITERATIONS = 110
SETTLING = 20
"""Iterations at the beginning that do not count."""

WORKERS = {
    # overhead and time per sample in seconds; "unequal" as measured on 0.6, 0.4, 0.2 and 0.1 of a core
    "unequal": ((0.0057, 0.0079, 0.0141, 0.042), (0.0006, 0.00084, 0.00208, 0.00425)),
    "nearly equal": ((0.01,) * 4, (0.0008, 0.001, 0.001, 0.0013)),
    "equal": ((0.006,) * 4, (0.0009,) * 4),
}
NOISES = (0.05, 0.12, 0.25, 0.45)
PREDICTORS = ("last", "ema", "steady", "light")
_EARLY, _LATER = 1, 4
"""Iterations between two reports, for the first four and from then on."""


def run(quick: bool, progress: Callable[[str, str, float], None]) -> dict[str, Any]:
    """The share of the best that each predictor reaches.

    Returns:
        ``of_best``: workers → noise → predictor → share, 1 is perfect; ``seeds``: runs that each is the mean of.
    """
    seeds = 3 if quick else 10
    of_best: dict[str, dict[str, dict[str, float]]] = {}
    total = len(WORKERS) * len(NOISES)
    for name in WORKERS:
        of_best[name] = {}
        for noise in NOISES:
            done = (len(of_best) - 1) * len(NOISES) + len(of_best[name])
            progress("closed loops", f"{name}, {noise:.0%} noise", done / total)
            of_best[name][f"{noise:g}"] = {
                predictor: statistics.fmean(loop(name, noise, predictor, seed) for seed in range(seeds))
                for predictor in PREDICTORS
            }
    return {"of_best": of_best, "seeds": seeds, "iterations": ITERATIONS, "settling": SETTLING}


def loop(workers: str, noise: float, predictor: str, seed: int) -> float:
    """One closed loop under LB-BSP; the share of the best that it reaches after settling."""
    overheads_s, per_sample_s = WORKERS[workers]
    rng = random.Random(seed)
    n = len(overheads_s)
    balancer = balancers.resolve(f"lb-bsp:predictor={predictor}")
    judges = [predictors.resolve(predictor) for _ in range(n)]
    limits = Limits.uniform(n, GLOBAL_BATCH)
    best_s = _slowest_s(fastest_finish(overheads_s, per_sample_s, GLOBAL_BATCH), workers)
    shares = proportional([1.0] * n, GLOBAL_BATCH)
    sums = [(0, 0.0)] * n
    since, reports, took_s = 0, 0, []
    for k in range(ITERATIONS):
        took_s.append(_slowest_s(shares, workers))
        costs = zip(overheads_s, per_sample_s, shares, strict=True)
        noisy = [(a + b * x) * math.exp(rng.gauss(0.0, noise)) for a, b, x in costs]
        sums = [(x + more, t + s) for (x, t), more, s in zip(sums, shares, noisy, strict=True)]
        since += 1
        if since < (_EARLY if reports < 4 else _LATER):
            continue
        seen = tuple(Observation(iteration=k, samples=x, local_s=t, iterations=since) for x, t in sums)
        for judge, observation in zip(judges, seen, strict=True):
            judge.observe(observation)
        view = BalanceView(
            iteration=k, global_batch=GLOBAL_BATCH, members=tuple(range(n)), shares=shares, observed=seen,
            predicted_per_s=tuple(judge.predict() for judge in judges), limits=limits,
            doubts=tuple(judge.doubt() for judge in judges),
        )  # fmt: skip
        shares = balancer.split(view).shares
        sums, since, reports = [(0, 0.0)] * n, 0, reports + 1
    return best_s * (ITERATIONS - SETTLING) / math.fsum(took_s[SETTLING:])


def _slowest_s(shares: tuple[int, ...], workers: str) -> float:
    return max(a + b * x for a, b, x in zip(*WORKERS[workers], shares, strict=True))


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    table = Table(title=f"Share of the best split's speed, mean of {result['seeds']} loops", box=SIMPLE_HEAD)
    for heading in ("workers", "noise", *PREDICTORS):
        table.add_column(heading, justify="left" if heading == "workers" else "right")
    for workers, rows in result["of_best"].items():
        for noise, reached in rows.items():
            table.add_row(workers, f"{float(noise):.0%}", *(f"{reached[name]:.3f}" for name in PREDICTORS))
    return [table]
