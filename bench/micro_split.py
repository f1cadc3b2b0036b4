"""Claim: a split for 10,000 workers is decided in less than 10 ms.

``python -m bench.micro_split`` prints one JSON line. Speeds are log-normal; "tight" means that about half the
workers are at a limit. Every number is the median over the repeats, in milliseconds of CPU time, which is the
elapsed time where nobody else wants the core: deciding never waits for anything.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from uneven.balance import LbBsp
from uneven.core.apportion import fastest_finish, proportional
from uneven.core.views import BalanceView, Limits, Observation

WORKERS = 10_000
REPEATS = 21


def median_ms(call: Callable[[int], Any]) -> float:
    """Median over the repeats; ``call`` is told which one it is."""
    times = []
    for k in range(REPEATS):
        start = time.process_time()
        call(k)
        times.append(1e3 * (time.process_time() - start))
    return round(statistics.median(times), 3)


def measure(workers: int = WORKERS) -> dict[str, Any]:
    """Time the functions, and the default balancer when it moves and when it keeps."""
    rng = random.Random(1)
    speeds = [rng.lognormvariate(4.0, 0.5) for _ in range(workers)]
    total = 32 * workers
    loose = Limits.uniform(workers, total)
    tight = Limits(lower=tuple(rng.randint(1, 25) for _ in speeds), upper=tuple(rng.randint(26, 60) for _ in speeds))
    costs = [rng.random() * 0.01 for _ in speeds], [1 / v for v in speeds]
    views = [_view(speeds, total, loose, rng) for _ in range(REPEATS)]
    even = LbBsp()
    settled = [dataclasses.replace(view, shares=proportional(speeds, total, loose)) for view in views]
    keeping = LbBsp(hysteresis=0.9)
    return {
        "workers": workers,
        "proportional_ms": median_ms(lambda _: proportional(speeds, total, loose)),
        "proportional_tight_ms": median_ms(lambda _: proportional(speeds, total, tight)),
        "fastest_finish_ms": median_ms(lambda _: fastest_finish(*costs, total, loose)),
        "fastest_finish_tight_ms": median_ms(lambda _: fastest_finish(*costs, total, tight)),
        "lb_bsp_move_ms": median_ms(lambda k: even.split(views[k])),
        "lb_bsp_keep_ms": median_ms(lambda k: keeping.split(settled[k])),
    }


def _view(speeds: list[float], total: int, limits: Limits, rng: random.Random) -> BalanceView:
    noisy = tuple(v * math.exp(rng.gauss(0.0, 0.03)) for v in speeds)
    share = total // len(speeds)
    return BalanceView(
        iteration=1,
        global_batch=total,
        members=tuple(range(len(speeds))),
        shares=(share,) * len(speeds),
        observed=tuple(Observation(iteration=0, samples=share, local_s=share / v) for v in noisy),
        predicted_per_s=noisy,
        limits=limits,
    )


if __name__ == "__main__":
    print(json.dumps(measure()))
