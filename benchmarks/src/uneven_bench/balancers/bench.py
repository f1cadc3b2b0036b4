"""``uneven bench balancers``: the balancers compared on known costs, in virtual time.

Each case of :mod:`uneven_bench.balancers.devices` runs for 400 iterations. Every worker predicts its own speed; reports
come after 1, 2, 4 and then every 8 iterations while nothing changes, and the balancer reads a report of iteration i at
the end of i + 1. The figure is the time of the best integer split ÷ the time of the splits in force, both without the
noise.
"""

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

from uneven.policy.balance import balancers
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView, Observation
from uneven.policy.predict import predictors
from uneven_bench.balancers.devices import CASES, Device, DeviceCase, noisy_s, slowest_s
from uneven_bench.balancers.earliest import earliest
from uneven_bench.harness.show import Progress

ITERATIONS = 400
SETTLED = 100  # the last iterations of a run, in which it should have settled
NAMES = ("even", "lb-bsp", "numerical", "numerical:pairs=8", "analytic")
_RAREST = 8


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Return the share of the best that each balancer reaches. Result: ``of_best``: case → balancer → share over the
    whole run, 1 is perfect; ``settled``: the same over its last ``settled_iterations``; ``about``: case → description;
    ``noise``; ``seeds``: runs in each mean; ``best``: case → the balancer with the largest share over the whole run."""
    seeds = 3 if quick else 10
    of_best: dict[str, dict[str, float]] = {}
    settled: dict[str, dict[str, float]] = {}
    for done, case in enumerate(CASES):
        of_best[case.name], settled[case.name] = {}, {}
        for place, name in enumerate(NAMES):
            progress("balancers", f"{case.name}, {name}", (done + place / len(NAMES)) / len(CASES))
            shares = [loop(case, name, seed) for seed in range(seeds)]
            of_best[case.name][name] = statistics.fmean(whole for whole, _ in shares)
            settled[case.name][name] = statistics.fmean(last for _, last in shares)
    return {
        "of_best": of_best,
        "settled": settled,
        "best": {case: max(row, key=row.__getitem__) for case, row in of_best.items()},
        "about": {case.name: case.about for case in CASES},
        "noise": {case.name: case.noise for case in CASES},
        "seeds": seeds,
        "iterations": ITERATIONS,
        "settled_iterations": SETTLED,
    }


def loop(
    case: DeviceCase, name: str, seed: int, told: Callable[[int, tuple[int, ...], str], None] | None = None
) -> tuple[float, float]:
    """Play one run, and return its share of the best over all of it and over its end. ``told``: receives each
    iteration, the shares in force and the newest reason."""
    rng = random.Random(seed)
    balancer, n, limits = balancers.resolve(name), len(case.devices), case.limits
    judges = [predictors.resolve(balancer.predictor) for _ in range(n)]
    newest = shares = proportional([1.0] * n, case.global_batch, limits)
    sums = [(0, 0.0, 0.0, 0)] * n
    pending: BalanceView | None = None
    reason = ""
    due, gap = 1, 1
    took_s, best_s = [], []
    best: dict[tuple[Device, ...], float] = {}
    for k in range(ITERATIONS):
        devices = case.at(k)
        took_s.append(slowest_s(devices, shares))
        if devices not in best:
            seconds = [device.seconds for device in devices]
            best[devices] = slowest_s(devices, earliest(seconds, case.global_batch, limits))
        best_s.append(best[devices])
        for i, (device, x) in enumerate(zip(devices, shares, strict=True)):
            local_s = noisy_s(device.local_s(x), case.noise, rng)
            transfer_s = device.whole_s(local_s) - local_s
            judges[i].observe(Observation(iteration=k, samples=x, local_s=local_s, transfer_s=transfer_s))
            samples, local, transfer, count = sums[i]
            sums[i] = samples + x, local + local_s, transfer + transfer_s, count + 1
        if told is not None:
            told(k, shares, reason)
        if pending is not None:
            split = balancer.split(pending)
            gap = 1 if split.shares != newest or k < 4 else min(2 * gap, _RAREST)
            newest, reason, pending = split.shares, split.reason, None
            due = k + gap
        if k >= due:
            seen = tuple(
                Observation(iteration=k, samples=x, local_s=local, transfer_s=transfer, iterations=count)
                for x, local, transfer, count in sums
            )
            sums = [(0, 0.0, 0.0, 0)] * n
            pending = BalanceView(
                iteration=k + 1,
                global_batch=case.global_batch,
                members=tuple(range(n)),
                shares=newest,
                observed=seen,
                predicted_per_s=tuple(judge.predict() for judge in judges),
                limits=limits,
                doubts=tuple(judge.doubt() for judge in judges),
            )
        shares = newest
    return math.fsum(best_s) / math.fsum(took_s), math.fsum(best_s[-SETTLED:]) / math.fsum(took_s[-SETTLED:])
