"""``uneven bench split``: is a split for 10,000 workers decided in less than 10 ms?

Speeds are log-normal; "tight" means that about half the workers are at a limit. Every number is the median over
the repeats, in milliseconds of CPU time, which is the elapsed time where nobody else wants the core: deciding
never waits for anything.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.table import Table

from uneven.policy.balance import LbBsp
from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven_bench.balancers.rivals.fastest import fastest_finish

WORKERS = 10_000
BAR_MS = 10.0
REPEATS = 21
QUICK_REPEATS = 5

Progress = Callable[[str, str, float], None]
"""Told the phase, what it is doing, and how much of it is done, 0 … 1."""

WHAT = {
    "proportional_ms": "in proportion to the speeds",
    "proportional_tight_ms": "the same, tight limits",
    "fastest_finish_ms": "least finishing time for affine costs",
    "fastest_finish_tight_ms": "the same, tight limits",
    "lb_bsp_move_ms": "lb-bsp, moves",
    "lb_bsp_keep_ms": "lb-bsp, keeps the present split",
    "lb_bsp_tight_ms": "lb-bsp, tight limits, moves",
    "lb_bsp_misfit_ms": "lb-bsp, tight limits, the present split does not fit them",
}
"""Key of the result → the same in words."""


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Time the functions, and the default balancer when it moves and when it keeps.

    Returns:
        ``workers``, ``bar_ms``, ``repeats``, ``slowest_ms``, and the keys of ``WHAT``.
    """
    repeats = QUICK_REPEATS if quick else REPEATS
    calls = _calls(WORKERS, repeats)
    found: dict[str, float] = {}
    for name, call in calls.items():
        progress("split", WHAT[name], len(found) / len(calls))
        found[name] = median_ms(call, repeats)
    progress("split", "done", 1.0)
    return {"workers": WORKERS, "bar_ms": BAR_MS, "repeats": repeats, "slowest_ms": max(found.values()), **found}


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    table = Table(title=f"Splitting for {result['workers']:,} workers; the bar is {result['bar_ms']:g} ms")
    table.add_column("")
    table.add_column("ms", justify="right")
    for key, words in WHAT.items():
        table.add_row(words, f"{result[key]:.2f}")
    return [table]


def median_ms(call: Callable[[int], Any], repeats: int) -> float:
    """Median over the repeats; ``call`` is told which one it is."""
    times = []
    for k in range(repeats):
        start = time.process_time()
        call(k)
        times.append(1e3 * (time.process_time() - start))
    return round(statistics.median(times), 3)


def _calls(workers: int, repeats: int) -> dict[str, Callable[[int], Any]]:
    rng = random.Random(1)
    speeds = [rng.lognormvariate(4.0, 0.5) for _ in range(workers)]
    total = 32 * workers
    loose = Limits.uniform(workers, total)
    tight = Limits(lower=tuple(rng.randint(1, 25) for _ in speeds), upper=tuple(rng.randint(26, 60) for _ in speeds))
    costs = [rng.random() * 0.01 for _ in speeds], [1 / v for v in speeds]
    views = [_view(speeds, total, loose, rng) for _ in range(repeats)]
    settled = [dataclasses.replace(view, shares=proportional(speeds, total, loose)) for view in views]
    misfit = [dataclasses.replace(view, limits=tight) for view in views]
    even = [dataclasses.replace(view, shares=proportional([1.0] * workers, total, tight)) for view in misfit]
    moving, keeping, held = LbBsp(), LbBsp(hysteresis=0.9), LbBsp()
    return {
        "proportional_ms": lambda _: proportional(speeds, total, loose),
        "proportional_tight_ms": lambda _: proportional(speeds, total, tight),
        "fastest_finish_ms": lambda _: fastest_finish(*costs, total, loose),
        "fastest_finish_tight_ms": lambda _: fastest_finish(*costs, total, tight),
        "lb_bsp_move_ms": lambda k: moving.split(views[k]),
        "lb_bsp_keep_ms": lambda k: keeping.split(settled[k]),
        "lb_bsp_tight_ms": lambda k: held.split(even[k]),
        "lb_bsp_misfit_ms": lambda k: held.split(misfit[k]),
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
