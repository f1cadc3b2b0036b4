"""``uneven bench defaults``: what is compared, on runs whose times are known."""

from __future__ import annotations

import pytest

from uneven.policy.balance import balancers
from uneven.policy.core.records import StepRecord
from uneven_bench import defaults as bench
from uneven_bench.defaults import TrainingRun


def every(seconds: float, until_s: float) -> tuple[float, ...]:
    return tuple(seconds * k for k in range(1, int(until_s / seconds) + 1))


def test_every_arm_can_be_made_and_every_cluster_fits_the_machine() -> None:
    assert all(balancers.resolve(arm) for arm in bench.ARMS)
    assert bench.ARMS[0] == bench.PRESENT
    for spec in bench.clusters().values():
        assert sum(node.cores for node in spec.nodes) <= 1.7


def test_an_iteration_under_way_counts_by_its_part() -> None:
    assert bench.iteration_s(every(0.5, 20.0), 2.0, 12.0) == pytest.approx(0.5)
    assert bench.iteration_s([1.0, 2.0, 6.0], 1.5, 4.0) == pytest.approx(2.5)  # half of one, and half of the next


def test_only_the_time_in_which_all_ran_is_compared() -> None:
    slow = TrainingRun((*every(0.5, 10.0), 40.0), 0.002)  # something held it up after ten seconds …
    fast = TrainingRun(every(0.25, 10.0), 0.004)  # … when the other had ended
    result = bench.summarize({"made": [{"lb-bsp": slow, "model": fast}, {"lb-bsp": fast, "model": fast}]})
    case = result["cases"]["made"]
    assert case["speedup_range"]["model"] == pytest.approx([1.0, 2.0])
    assert case["speedup"]["lb-bsp"] == 1.0
    assert case["compared_s"] == pytest.approx(8.0)
    assert case["control_share"]["model"] == 0.004
    assert result["compared_to"] == "lb-bsp"
    assert len(bench.tables(result)) == 2


def test_a_run_begins_when_the_last_worker_does() -> None:
    steps = [
        StepRecord(
            rank=rank, iteration=k, epoch=0, batch=8, global_batch=16, data_s=0.1, compute_s=0.2, exchange_s=0.2,
            control_s=0.005, ended_at_s=100.0 + rank + 0.5 * k,
        )
        for rank in range(2) for k in range(30)
    ]  # fmt: skip
    run = bench.read(list(steps))
    assert run.ends_s[:2] == pytest.approx((0.5, 1.0))
    assert run.control == pytest.approx(0.01)
