"""``uneven bench overhead``: its reckoning."""

from __future__ import annotations

import pytest

from uneven.policy.core.records import StepRecord
from uneven_bench.overhead import decide, share_of


def step(rank: int, iteration: int, batch: int, control_s: float) -> StepRecord:
    return StepRecord(
        rank=rank, iteration=iteration, epoch=0, batch=batch, global_batch=40, data_s=0.01, compute_s=0.06,
        exchange_s=0.03, control_s=control_s, ended_at_s=0.0,
    )  # fmt: skip


def test_workers_are_weighed_by_their_samples_and_the_start_does_not_count() -> None:
    steps = [step(0, k, 30, 0.001 if k >= 20 else 0.1) for k in range(40)]
    steps += [step(1, k, 10, 0.005) for k in range(40)]
    share, iteration_s = share_of(steps)
    assert share == pytest.approx(0.75 * 0.01 + 0.25 * 0.05)
    assert iteration_s == pytest.approx(0.1)


def test_a_decision_is_made() -> None:
    assert decide(16, repeats=2) > 0
