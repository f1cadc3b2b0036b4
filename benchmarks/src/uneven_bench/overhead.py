"""``uneven bench overhead``: the time of measuring, predicting, deciding and exchanging reports in an iteration.

Real runs of 4 and 8 workers share this machine's cores; then the decision alone, with made-up reports of up to 10,000
workers.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from uneven import journal
from uneven.policy.balance import LbBsp
from uneven.policy.control import Decider, Report, ReportTable
from uneven.policy.core.records import Record
from uneven.policy.core.views import Limits
from uneven_bench.harness.figures import in_turns
from uneven_bench.harness.program import program
from uneven_bench.harness.show import Progress
from uneven_bench.harness.steps import control_share, steps_of, took_s

WORKERS = (4, 8)
DECIDING = (16, 100, 1_000, 10_000)
BAR_SHARE = 0.005
BAR_DECIDE_S = 0.002  # the limit for 1,000 workers
_PER_WORKER = 64  # samples of an iteration
_LIMIT_S = 300.0
_WARM = 20  # the first iterations do not count: each of them has reports


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Measure both. Result: ``share`` (workers → share of the iteration time, workers weighted by samples),
    ``share_range`` (least and greatest of the repeats), ``iteration_s`` (workers → median), ``decide_s`` (workers →
    median seconds), ``repeats``, ``bar_share``, ``bar_decide_s``. Raises LaunchError: a run failed."""
    repeats, iterations = (1, 120) if quick else (3, 400)
    found: dict[int, list[tuple[float, float]]] = {workers: [] for workers in WORKERS}
    with tempfile.TemporaryDirectory(prefix="uneven-overhead-") as folder:
        for repeat, workers in in_turns(progress, "running", range(repeats), WORKERS):
            records = _train(workers, iterations, data, Path(folder) / f"{workers}-{repeat}")
            found[workers].append(share_of(records))
    decide_s = {}
    for number, workers in enumerate(DECIDING):
        progress("deciding", f"{workers:,} workers", number / len(DECIDING))
        decide_s[str(workers)] = decide(workers, repeats=7 if quick else 21)
    progress("deciding", "done", 1.0)
    shares = {str(workers): [share for share, _ in each] for workers, each in found.items()}
    return {
        "share": {workers: statistics.median(each) for workers, each in shares.items()},
        "share_range": {workers: [min(each), max(each)] for workers, each in shares.items()},
        "iteration_s": {str(workers): statistics.median(time for _, time in each) for workers, each in found.items()},
        "decide_s": decide_s,
        "repeats": repeats,
        "bar_share": BAR_SHARE,
        "bar_decide_s": BAR_DECIDE_S,
    }


def _train(workers: int, iterations: int, data: str, where: Path) -> list[Record]:
    words = ("uneven", "run", "--nproc", workers, "--run-dir", where, "--module", "uneven_bench.worlds.worker")
    program(*words, iterations, _PER_WORKER * workers, data, timeout_s=_LIMIT_S)
    return list(journal.read(where).records())


def share_of(records: Iterable[Record]) -> tuple[float, float]:
    """Return the share of time for measuring and deciding, workers weighted by samples, and the mean iteration time."""
    steps = steps_of(records, _WARM)
    samples = [sum(one.batch for one in its) for its in steps.values()]
    share = statistics.fmean(map(control_share, steps.values()), samples)
    return share, statistics.fmean(map(took_s, steps[min(steps)]))


def decide(workers: int, repeats: int) -> float:
    """Return the median seconds of a decision on new reports of all workers, with steady speeds and 3 % noise."""
    rng = random.Random(workers)
    speeds = [rng.uniform(20.0, 100.0) for _ in range(workers)]
    total = _PER_WORKER * workers
    decider = Decider(
        LbBsp(), tuple(range(workers)), Limits.uniform(workers, total), global_batch=total, lookahead=0, budget=0.005
    )
    times_s = []
    for number in range(repeats + 3):
        reports = ReportTable(_reports(decider, speeds, number, rng))
        began_s = time.perf_counter()
        decider.decide(4 * number + 1, 4 * number, reports)
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s[3:])


def _reports(decider: Decider, speeds: list[float], number: int, rng: random.Random) -> list[Report]:
    now = [speed * rng.uniform(0.97, 1.03) for speed in speeds]
    return [
        Report(
            iteration=4 * number,
            iterations=4,
            samples=4 * share,
            local_s=4 * share / speed,
            exchange_s=0.1,
            transfer_s=0.0,
            control_s=1e-4,
            cost_s=1e-4,
            cpu=0.1,
            memory=0.2,
            predicted_per_s=speed,
            doubt=0.01,
            urgent=0.0,
            no_early_reports=0.0,
            split=decider.fingerprint(),
        )
        for share, speed in zip(decider.newest, now, strict=True)
    ]
