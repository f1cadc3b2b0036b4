"""Batch sizes and times with their marks, predicted against true speed, and measured costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sample_runs import SampleRun

from uneven.cluster.pure.describe.cluster_events import Do
from uneven.journal import Writer, rank_path, read
from uneven.journal.pure.messages import CLUSTER
from uneven.journal.report import html
from uneven.journal.report.pure import changes, figures, snapshot
from uneven.journal.report.pure.chart_series import RunData, run_data
from uneven.policy.core.records import EventRecord, ProfileRecord, ScalarRecord, SplitRecord, StepRecord


def run_of(run: Path, *more: Any, **options: Any) -> RunData:
    SampleRun(**options).write(run)
    with Writer(rank_path(run, 0)) as writer:
        for record in more:
            writer.write(record)
    return run_data(read(run))


def split(iteration: int, reason: str) -> SplitRecord:
    return SplitRecord(
        decided_at=iteration - 1, iteration=iteration, shares=(1,), speeds_per_s=(1.0,), predicted_per_s=(1.0,),
        reason=reason,
    )  # fmt: skip


def event(iteration: int, kind: str = "cut_link", message: str = "m60 has <100> Mbit/s left") -> EventRecord:
    return EventRecord(rank=1, iteration=iteration, at_s=0.0, event=kind, message=message)


def profile(rank: int, failed: int | None = None) -> ProfileRecord:
    return ProfileRecord(
        rank=rank, at_s=0.0, sizes=(1, 2, 4), seconds=(0.01, 0.011, 0.02), saturation=1, most=3, failed=failed
    )


def test_the_events_of_a_cluster_are_those_of_its_description() -> None:
    assert set(CLUSTER) == {do.value for do in Do}


def test_phases_are_the_stretches_between_moves() -> None:
    told = [
        split(7, "numerical, fast approach: 38 samples from rank 3 to rank 0"),
        split(20, "numerical, fast approach: 38 samples from rank 2 to rank 0"),
        split(30, "numerical, fine-tune: 19 samples from rank 0 to rank 3"),
        split(60, "numerical, settled: back to the best split seen, 12 ms"),
        split(90, "numerical, fast approach: 38 samples from rank 3 to rank 2"),
    ]
    assert changes.phases(told, 100) == [
        (0, 30, "fast approach"), (30, 60, "fine-tune"), (60, 90, "settled"), (90, 100, "fast approach"),
    ]  # fmt: skip
    assert changes.phases(told[:1], 0) == []
    assert changes.phases([split(3, "model, fine-tune: 50% of the way"), split(4, "proportional")], 9) == []


def test_sizes_and_times_are_those_of_the_steps(tmp_path: Path) -> None:
    run = run_of(tmp_path, noise=0.1)
    figure = changes.batches_and_times(run, 400)
    sizes = [line for line in figure["data"] if line.get("yaxis") != "y2"]
    times = [line for line in figure["data"] if line.get("yaxis") == "y2"]
    assert [len(sizes), len(times)] == [4, 4]
    steps = {(r.rank, r.iteration): r for r in read(tmp_path).records() if isinstance(r, StepRecord)}
    for rank, (size, time) in enumerate(zip(sizes, times, strict=True)):
        assert size["y"] == [steps[rank, int(k)].batch for k in size["x"]]
        own_s = [steps[rank, int(k)].data_s + steps[rank, int(k)].compute_s for k in time["x"]]
        assert time["y"] == pytest.approx(own_s, rel=1e-3)
        assert size["line"]["color"] == time["line"]["color"]
    assert figure["layout"]["yaxis2"]["title"]["text"] == "s per batch"
    assert not figure["layout"]["shapes"]


def test_what_happened_is_marked_with_its_words(tmp_path: Path) -> None:
    moves = [split(7, "numerical, fast approach: a"), split(30, "numerical, fine-tune: b")]
    run = run_of(tmp_path, event(15), event(18, "slow", "k80 goes on at half"), event(16, "bad-report", "no"), *moves)
    layout = changes.batches_and_times(run, 400)["layout"]
    lines = [shape for shape in layout["shapes"] if shape["type"] == "line"]
    bands = [shape for shape in layout["shapes"] if shape["type"] == "rect"]
    assert [line["x0"] for line in lines] == [15, 18]
    assert [(band["x0"], band["x1"]) for band in bands] == [(0, 30), (30, 59)]
    first, second = layout["annotations"]
    assert first["text"] == "cut_link: m60 has <100> Mbit/s left"
    assert second["yshift"] > first["yshift"], "neighbours do not cover each other"
    page = html.report(tmp_path)
    assert "Dashed: events of the cluster." in page
    assert "Shaded: the phases of the method." in page


def test_many_events_are_marked_without_words(tmp_path: Path) -> None:
    layout = changes.batches_and_times(run_of(tmp_path, *(event(k) for k in range(9))), 400)["layout"]
    assert (len(layout["shapes"]), layout["annotations"]) == (9, [])


def test_many_workers_are_maps(tmp_path: Path) -> None:
    run = run_of(tmp_path, speeds_per_s=[100.0 + rank for rank in range(32)])
    above, below = changes.batches_and_times(run, 100)["data"]
    assert (above["type"], len(above["z"]), len(below["z"])) == ("heatmap", 32, 32)
    pictures = snapshot.snapshots(run, figures.all_series(run))
    assert len(pictures["data"]) == 64
    assert len({line["yaxis"] for line in pictures["data"]}) == 32
    crowd = run_of(tmp_path / "crowd", speeds_per_s=[100.0] * 33, iterations=3)
    assert "Prediction error</h2>" in html.report(tmp_path / "crowd")
    assert len(crowd.ranks) > snapshot.SNAPSHOTS_UP_TO


def test_one_value_is_shown_on_an_axis_from_zero(tmp_path: Path) -> None:
    def f1(iteration: int) -> ScalarRecord:
        return ScalarRecord(rank=0, iteration=iteration, at_s=0.0, name="f1", value=0.9)

    run = run_of(tmp_path / "a", f1(20))
    for figure in (figures.scalars(run)["f1"], figures.scalar_against_time({"a": run, "b": run}, "f1")):
        assert figure["layout"]["yaxis"]["range"] == [0.0, pytest.approx(0.945)]
    many = run_of(tmp_path / "b", f1(20), f1(30))
    assert "range" not in figures.scalars(many)["f1"]["layout"]["yaxis"]


def test_a_snapshot_says_how_far_the_prediction_was_off(tmp_path: Path) -> None:
    run = run_of(tmp_path, noise=0.1)
    figure = snapshot.snapshots(run, figures.all_series(run))
    captions = [one["text"] for one in figure["layout"]["annotations"]]
    assert all(text.startswith(f"rank {rank}, off by ") for rank, text in enumerate(captions))
    measured, predicted = figure["data"][:2]
    assert (measured["name"], predicted["name"]) == ("measured", "predicted")
    assert predicted["line"]["shape"] == "hv"


def test_measured_costs_and_where_memory_ended(tmp_path: Path) -> None:
    run = run_of(tmp_path, profile(0), profile(1, failed=8))
    figure = snapshot.cost_curves(run)
    whole, cut, cross = figure["data"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["10", "20", "50", "100", "200", "500"]
    assert (whole["x"], whole["y"]) == ([1.0, 2.0, 4.0], [10.0, 11.0, 20.0])
    assert cut["legendgroup"] == cross["legendgroup"] == "rank 1"
    assert cross["x"] == [8.0]
    assert "at most 3" in cross["hovertemplate"]
    assert "Cost of a batch, measured before the start" in html.report(tmp_path)
    assert snapshot.cost_curves(run_of(tmp_path / "none"))["data"] == []
