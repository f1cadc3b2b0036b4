"""Load that changes every few iterations, in virtual time; and iterations that workers finish together."""

import heapq
import math

import numpy as np

from uneven.policy.balance import balancers
from uneven.policy.core.views import Observation
from uneven.policy.samples.finish_together import FinishTogether
from uneven_bench.rivals.cases import CPU_OVERHEAD_S, CPU_PER_SAMPLE_S, ITERATIONS, LAUNCH_PART, RivalCase, Table
from uneven_bench.rivals.loops import REPORT_S, RivalOutcome, SettledTotals, looped

WORKERS, EACH, NOISE = 8, 64, 0.05

ASKING_S = 0.0003  # a worker's cost to move the counter: a question to the store of a real run, more if others wait


def flicker(use: Table, held: int, seed: int) -> RivalCase:
    """Return eight equal machines with a changing load, new every ``held`` iterations. ``use``: (records, machines), 0
    … 1; ``seed`` chooses eight machines and a stretch of records."""
    rng = np.random.default_rng(seed)
    rows = -(-ITERATIONS // held)
    machines = rng.permutation(use.shape[1])[:WORKERS] if use.shape[1] >= WORKERS else np.arange(WORKERS) % use.shape[1]
    records = (np.arange(rows) + rng.integers(use.shape[0])) % use.shape[0]
    level = np.repeat(1.0 / np.clip(1.0 - use[np.ix_(records, machines)], 0.05, 1.0), held, axis=0)[:ITERATIONS]
    noise = np.exp(rng.normal(0.0, NOISE, level.shape))
    overhead_s, per_sample_s = CPU_OVERHEAD_S[0], CPU_PER_SAMPLE_S[1]
    return RivalCase(
        name=f"flicker {held}", global_batch=WORKERS * EACH, step_s=((1.0 - LAUNCH_PART) * overhead_s,) * WORKERS,
        launch_s=(LAUNCH_PART * overhead_s,) * WORKERS, per_sample_s=(per_sample_s,) * WORKERS, slow=level * noise,
        level=level, transfer_s=np.full(level.shape, 0.001),
    )  # fmt: skip


def together(case: RivalCase) -> RivalOutcome:
    """Play iterations under ``lb-bsp`` that workers finish together: a free worker takes the next chunk, as in real
    runs."""
    n, total = case.workers, case.global_batch
    rule, totals, balancer = FinishTogether(n, total), SettledTotals(n), balancers.resolve("lb-bsp")
    run = looped(case, balancer)
    for k in range(ITERATIONS):
        moved_s = case.transfer_s[k].tolist()
        done, first_s, busy_s = _iteration(case, k, rule, run.controller.shares(k))
        took_s = max(map(sum, zip(busy_s, moved_s, strict=True)))
        totals.add(k, took_s, math.fsum(busy_s) + math.fsum(moved_s))
        rule.launch_s = [launch_s * slow for launch_s, slow in zip(case.launch_s, case.slow[k].tolist(), strict=True)]
        rule.ended(done, *([sum(both) for both in zip(one, moved_s, strict=True)] for one in (busy_s, first_s)))
        for rank, (x, own_s, its_s) in enumerate(zip(done, busy_s, moved_s, strict=True)):
            seen = Observation(iteration=k, samples=x, local_s=own_s, exchange_s=took_s - own_s, transfer_s=its_s)
            run.measured(rank, seen)
        for rank in range(n):
            run.ended(rank, k, REPORT_S)
    return totals.outcome()


def _iteration(
    case: RivalCase, k: int, rule: FinishTogether, shares: tuple[int, ...]
) -> tuple[list[int], list[float], list[float]]:
    """Return each worker's samples, and the times of its first part and of all."""
    done = [*rule.first_parts(shares)]
    first_s = [case.local_s(k, i, samples) for i, samples in enumerate(done)]
    now_per_s = [samples / time for samples, time in zip(done, first_s, strict=True)]
    busy_s, left = [*first_s], case.global_batch - sum(done)
    free = [(time, worker) for worker, time in enumerate(busy_s)] if left else []
    heapq.heapify(free)
    here: dict[int, float] = {}
    while free:
        now_s, worker = heapq.heappop(free)
        busy_s[worker] = now_s + ASKING_S
        here[worker] = now_per_s[worker]
        size = rule.chunk(worker, done[worker], left, here)
        if not size:
            here[worker] = 0.0
        else:
            busy_s[worker] += case.micro_s(k, worker, size)
            done[worker] += size
            left -= size
            heapq.heappush(free, (busy_s[worker], worker))
    return done, first_s, busy_s
