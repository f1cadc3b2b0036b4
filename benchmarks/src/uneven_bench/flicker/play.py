"""Load that changes every few iterations, in virtual time; and iterations that are finished together. Pure."""

from __future__ import annotations

import math

import numpy as np

from uneven.loops.finish import FinishTogether, next_worker
from uneven_bench.rivals.cases import CPU_OVERHEAD_S, CPU_PER_SAMPLE_S, ITERATIONS, LAUNCH_PART, RivalCase, Table
from uneven_bench.rivals.loops import RivalOutcome, SettledTotals

WORKERS, EACH, NOISE = 8, 64, 0.05


def flicker(use: Table, held: int, seed: int) -> RivalCase:
    """Eight equal machines of which others use a part, another one every ``held`` iterations.

    Args:
        use: ``(records, machines)``, 0 … 1; eight machines and a stretch of records are chosen by ``seed``.
    """
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
    """Iterations that are finished together."""
    rule, totals = FinishTogether(case.workers, case.global_batch, case.launch_s), SettledTotals(case.workers)
    everybody = range(case.workers)
    for k in range(ITERATIONS):
        done = [*rule.first_parts()]
        first_s = [case.local_s(k, i, samples) for i, samples in enumerate(done)]
        moved_s, busy_s, left = case.transfer_s[k].tolist(), [*first_s], case.global_batch - sum(done)
        now_per_s = [samples / time for samples, time in zip(done, first_s, strict=True)]
        parts = [speed / sum(now_per_s) for speed in now_per_s]
        while left:
            sizes = [rule.chunk(worker, left, part) for worker, part in enumerate(parts)]
            free_s = [busy_s[i] + moved_s[i] for i in everybody]
            worker = next_worker(free_s, [case.micro_s(k, i, sizes[i]) for i in everybody])
            busy_s[worker] += case.micro_s(k, worker, sizes[worker])
            done[worker] += sizes[worker]
            left -= sizes[worker]
        totals.add(k, max(busy_s[i] + moved_s[i] for i in everybody), math.fsum(busy_s) + math.fsum(moved_s))
        rule.ended(done, [busy_s[i] + moved_s[i] for i in everybody], [first_s[i] + moved_s[i] for i in everybody])
    return totals.outcome()
