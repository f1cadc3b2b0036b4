"""Joining ranks and summing up, against runs whose truth is known."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from sample_runs import START_S, SampleRun

from uneven.journal import Follower, iterations, rank_path, read, summarize
from uneven.journal.pure.metrics import Join
from uneven.policy.core.records import ForecastRecord, RunRecord, SplitRecord, StepRecord


def step(rank: int, iteration: int, **changes: float) -> StepRecord:
    values = {
        "epoch": 0, "batch": 8, "global_batch": 16, "data_s": 0.1, "compute_s": 0.4, "exchange_s": 0.2,
        "control_s": 0.0, "ended_at_s": 100.0 + iteration,
    }  # fmt: skip
    return StepRecord(rank=rank, iteration=iteration, **(values | changes))  # type: ignore[arg-type]


def test_the_last_to_arrive_waits_for_nobody() -> None:
    (one,) = iterations([step(0, 0, exchange_s=0.5), step(1, 0, exchange_s=0.2)])
    assert one.timings[0].wait_s == pytest.approx(0.3)
    assert one.timings[1].wait_s == 0.0
    assert {t.communicate_s for t in one.timings.values()} == {0.2}
    assert one.timings[0].total_s == pytest.approx(1.0)
    assert math.isnan(one.duration_s)


def test_unfinished_iterations_are_left_out() -> None:
    records = [step(0, 0), step(1, 0), step(0, 1)]
    assert [one.iteration for one in iterations(records)] == [0]
    lost_in_the_middle = [*records, step(0, 2), step(1, 2)]
    done = iterations(lost_in_the_middle)
    assert [one.iteration for one in done] == [0, 2]
    assert math.isnan(done[1].duration_s)


def test_a_worker_without_samples_takes_part() -> None:
    (one,) = iterations([step(0, 0, batch=16, exchange_s=0.3), step(1, 0, batch=0, exchange_s=0.1)])
    assert one.timings[0].wait_s == pytest.approx(0.2)
    assert one.timings[1].speed_per_s == 0.0


def test_summary_of_a_balanced_run(tmp_path: Path) -> None:
    sample = SampleRun(speeds_per_s=(300.0, 100.0), global_batch=400, settle=0, data_s=0.0, iterations=30)
    summary = summarize(iterations(read(sample.write(tmp_path)).records()))
    assert summary.iterations == 29
    assert summary.samples == 29 * 400
    assert summary.iteration_s == pytest.approx(1.01)
    assert summary.iteration_low_s == pytest.approx(1.01)
    assert summary.samples_per_s == pytest.approx(400 / 1.01)
    assert summary.limit_s == pytest.approx(1.0)
    assert summary.fraction_of_limit == pytest.approx(1 / 1.01)
    assert summary.wait_share == pytest.approx(0.0)
    assert summary.communicate_share == pytest.approx(0.01 / 1.01)
    assert [worker.speed_per_s for worker in summary.workers] == pytest.approx([300.0, 100.0])


def test_summary_of_an_even_run_waits(tmp_path: Path) -> None:
    sample = SampleRun(speeds_per_s=(300.0, 100.0), global_batch=400, balanced=False, data_s=0.0, iterations=10)
    summary = summarize(iterations(read(sample.write(tmp_path)).records()))
    fast, slow = summary.workers
    assert fast.wait_share == pytest.approx((2 - 2 / 3) / 2.01)
    assert slow.wait_share == pytest.approx(0.0)
    assert summary.wait_share == pytest.approx((2 - 2 / 3) / 4.02)
    assert summary.fraction_of_limit == pytest.approx(1.0 / 2.01)
    for worker in summary.workers:
        parts = (worker.data_share, worker.compute_share, worker.wait_share, worker.communicate_share)
        assert sum(parts) == pytest.approx(1.0)


def test_prediction_error_is_of_the_split_in_force(tmp_path: Path) -> None:
    sample = SampleRun(data_s=0.0, settle=5, iterations=40)
    summary = summarize(iterations(read(sample.write(tmp_path)).records()))
    assert [worker.prediction_error for worker in summary.workers] == pytest.approx([0.05] * 4)


def test_nothing_gives_nan_not_an_error() -> None:
    summary = summarize([])
    assert summary.iterations == 0
    assert math.isnan(summary.iteration_s)
    assert math.isnan(summary.fraction_of_limit)
    assert summary.workers == ()


def test_a_resumed_run_counts_repeated_iterations_once(tmp_path: Path) -> None:
    SampleRun(iterations=30, communicate_s=0.5).write(tmp_path, end=False)
    SampleRun(iterations=40, communicate_s=0.01).write(tmp_path, first=20, start_s=START_S + 3600)
    done = iterations(read(tmp_path).records())
    assert [one.iteration for one in done] == list(range(40))
    assert done[19].timings[0].communicate_s == pytest.approx(0.5)
    assert done[20].timings[0].communicate_s == pytest.approx(0.01)
    assert math.isnan(done[20].duration_s)  # the hour in between is nobody's iteration
    assert max(one.duration_s for one in done if not math.isnan(one.duration_s)) < 60


def test_resuming_with_fewer_workers(tmp_path: Path) -> None:
    SampleRun(iterations=30).write(tmp_path, end=False)
    SampleRun(iterations=40, speeds_per_s=(100.0, 100.0)).write(tmp_path, first=20, start_s=START_S + 3600)
    done = iterations(read(tmp_path).records())
    assert [len(one.timings) for one in done] == [4] * 20 + [2] * 20


def test_the_limit_of_a_resumed_run_is_that_of_the_workers_of_each_iteration(tmp_path: Path) -> None:
    equal = SampleRun(speeds_per_s=(100.0,) * 4, global_batch=120, data_s=0.0, communicate_s=0.0, iterations=20)
    equal.write(tmp_path)
    fewer = dataclasses.replace(equal, speeds_per_s=(100.0,) * 2, iterations=80)
    fewer.write(tmp_path, first=20, start_s=START_S + 3600)
    assert summarize(iterations(read(tmp_path).records())).fraction_of_limit == pytest.approx(1.0, rel=0.01)


def test_the_new_lifes_first_split_replaces_the_old_ones() -> None:
    def run(start_s: float) -> RunRecord:
        return RunRecord(run="r", rank=0, world_size=1, host="h", pid=1, started_at_s=start_s)

    def split(iteration: int, predicted: float) -> SplitRecord:
        return SplitRecord(
            decided_at=iteration - 1, iteration=iteration, shares=(16,), speeds_per_s=(1.0,),
            predicted_per_s=(predicted,), reason="",
        )  # fmt: skip

    old = [run(0.0), split(0, 1.0), split(5, 2.0), *(step(0, i, batch=16) for i in range(8))]
    new = [run(1000.0), split(3, 3.0), *(step(0, i, batch=16, ended_at_s=1000.0 + i) for i in range(3, 8))]
    done = iterations([*old, *new])
    assert [one.predicted_per_s for one in done] == [(1.0,)] * 3 + [(3.0,)] * 5


def test_what_a_worker_foretold_counts_before_what_its_split_was_based_on() -> None:
    def told(rank: int, iteration: int, speed: float) -> ForecastRecord:
        return ForecastRecord(rank=rank, iteration=iteration, predicted_per_s=speed, doubt=0.1)

    split = SplitRecord(
        decided_at=-1, iteration=0, shares=(8, 8), speeds_per_s=(1.0, 1.0), predicted_per_s=(1.0, 2.0), reason=""
    )
    steps = [step(rank, iteration) for iteration in range(6) for rank in range(2)]
    forecasts = [told(1, 2, 20.0), told(1, 4, math.nan), told(1, 5, 50.0)]
    rows = [one.predicted_per_s for one in iterations([split, *steps, *forecasts])]
    assert rows == [(1.0, 2.0)] * 2 + [(1.0, 20.0)] * 2 + [(1.0, 2.0), (1.0, 50.0)]
    again = [*forecasts, told(1, 3, 30.0)]  # a later life that begins with iteration 3
    assert [one.predicted_per_s[1] for one in iterations([split, *steps, *again])] == [2.0] * 2 + [20.0] + [30.0] * 3
    nobody = iterations([*steps, told(1, 3, 30.0)])
    assert [len(one.predicted_per_s) for one in nobody] == [0] * 3 + [2] * 3
    assert math.isnan(nobody[-1].predicted_per_s[0])


def test_following_gives_the_same_as_reading(tmp_path: Path) -> None:
    SampleRun(iterations=12, noise=0.1).write(tmp_path / "whole")
    whole = iterations(read(tmp_path / "whole").records())
    follower, join, taken = Follower(tmp_path / "grows"), Join(), []
    lines = {rank: rank_path(tmp_path / "whole", rank).read_bytes().splitlines(keepends=True) for rank in range(4)}
    (tmp_path / "grows" / "journal").mkdir(parents=True)
    while any(lines.values()):
        for rank, rest in lines.items():
            with rank_path(tmp_path / "grows", rank).open("ab") as stream:
                stream.writelines(rest[: rank + 1])  # ranks are seen at different places
            del rest[: rank + 1]
        for record in follower.poll():
            join.add(record)
        taken += join.take()
    taken += join.take(final=True)
    assert [one.timings for one in taken] == [one.timings for one in whole]
    assert [one.duration_s for one in taken[1:]] == [one.duration_s for one in whole[1:]]
    assert not join.rewound


def test_rewinding_while_following_is_told(tmp_path: Path) -> None:
    follower, join = Follower(tmp_path), Join()

    def look() -> None:
        for record in follower.poll():
            join.add(record)
        join.take()

    SampleRun(iterations=10).write(tmp_path, end=False)
    look()
    assert not join.rewound
    SampleRun(iterations=12).write(tmp_path, first=5, start_s=START_S + 3600)
    look()
    assert join.rewound
