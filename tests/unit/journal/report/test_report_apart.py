"""Report, view, curves, trace and comparison of workers that take steps of their own."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from apart_runs import ApartRun
from rich.console import Console
from sample_runs import START_S, SampleRun

from uneven.cli import main
from uneven.journal import Follower, Writer, rank_path, read
from uneven.journal.report import comparison, html
from uneven.journal.report.pure.chart_series import run_data, worker_series
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.pure.points import PointStream, results
from uneven.journal.report.pure.text import count
from uneven.journal.report.screen import final, live
from uneven.journal.report.terminal import plain_line
from uneven.journal.report.track import LoggedValue
from uneven.policy.core.records import MembershipRecord, ScalarRecord, StepRecord

RUN = ApartRun()
RATE = count(RUN.samples_per_s)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return RUN.write(tmp_path / "apart")


def shown(page: str) -> str:
    """The words of a page, without its pictures."""
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL))


def printed(what: object) -> str:
    console = Console(file=io.StringIO(), width=110)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_counts_every_step(run: Path) -> None:
    page = html.report_page(run)
    words = " ".join(shown(page.html()).split())
    assert f"{RATE} samples/s" in words
    assert "130 global batches of samples in 1:00" in words
    assert "each worker takes separate steps" in words
    assert "0 here 2,400 240 250 ms" in words
    assert "iteration" not in words.split("Written by")[0]
    times = page.figures["Time per global batch"]
    usual_ms = 1e3 * RUN.global_batch / RUN.samples_per_s
    assert list(times["data"][0]["y"]) == pytest.approx([usual_ms] * len(times["data"][0]["y"]), rel=0.2)
    assert times["data"][1]["y"][-1] == pytest.approx(0.875 * usual_ms, rel=0.01)
    shares = page.figures["Share of the samples"]
    means = [sum(one["y"]) / len(one["y"]) for one in shares["data"]]
    assert means == pytest.approx([100 * steps / sum(RUN.counts) for steps in RUN.counts], rel=0.05)
    for figure in page.figures.values():
        assert "iteration" not in json.dumps(figure["layout"])


def test_each_worker_s_time_is_that_of_its_own_steps(run: Path) -> None:
    areas = html.report_page(run).figures["Where each worker's time goes"]["data"]
    compute = [one for one in areas if one["name"] == "compute"]
    for one, step_s in zip(compute, RUN.steps_s, strict=True):
        known = [value for value in one["y"] if value == value]
        assert known == pytest.approx([0.75 * step_s] * len(known))


def test_what_was_logged_is_the_mean_over_a_global_batch(run: Path) -> None:
    rows = run_data(read(run)).scalars["loss"]
    assert [row.iteration for row in rows] == sorted({row.iteration for row in rows})
    wanted = sum(rank * steps for rank, steps in enumerate(RUN.counts)) / sum(RUN.counts)
    assert sum(row.value for row in rows) / len(rows) == pytest.approx(wanted, rel=0.02)
    assert {row.iteration for row in rows} == set(range(130))


def test_the_view_counts_every_step(run: Path) -> None:
    state = RunProgress()
    state.feed(Follower(run).poll())
    text = printed(final(state, "apart", 110))
    assert re.search(rf"samples/s +{RATE}", text)
    assert "130 (3,900 samples)" in text
    assert "240  120  30" in text
    assert "iteration" not in text
    assert "ended after global batch 130" in text


def test_the_view_while_the_run_goes_on(tmp_path: Path) -> None:
    state = RunProgress()
    state.feed(Follower(RUN.write(tmp_path / "apart", end=False)).poll())
    assert plain_line(state).startswith("global batch 130/100, ")
    rates = re.findall(r"([\d.]+) samples/s", printed(live(state, "apart", 110, 40)))
    assert [float(rate) for rate in rates] == pytest.approx([RUN.samples_per_s], rel=0.05)
    assert sum(state.shares().values()) == pytest.approx(RUN.global_batch, abs=1)
    assert state.shares()[0] == pytest.approx(RUN.global_batch * 240 / 390, abs=2)


def test_who_is_gone_has_no_share_and_who_computes_has_one(tmp_path: Path) -> None:
    left_s, back_s = START_S + 20.0, START_S + 40.0
    for rank in range(3):
        writer = Writer(rank_path(tmp_path, rank))
        for record in RUN.records(rank):
            gone = rank == 2 and isinstance(record, StepRecord) and left_s < record.ended_at_s < back_s
            writer.write(*[record] * (not gone))
        for at_s, came, left in ((left_s, (), (2,)), (back_s, (2,), ())):
            members = (0, 1) if left else (0, 1, 2)
            told = MembershipRecord(
                rank=rank, iteration=0, at_s=at_s, generation=1, members=members, came=came, left=left
            )  # fmt: skip
            writer.write(told)
        writer.close()
    data = run_data(read(tmp_path))
    by_time = [
        [one for one in data.iterations if START_S + t <= one.ended_at_s < START_S + t + 1.5] for t in (9, 30, 50)
    ]
    before, gone_share, after = worker_series(by_time, 2).share_percent
    assert math.isnan(gone_share)
    assert before >= 0.0
    assert after >= 0.0


def curve(points: Iterable[LoggedValue], name: str) -> list[float]:
    return [one.value for one in points if one.name == name]


def test_curves_are_over_global_batches(run: Path) -> None:
    stream = PointStream()
    points = stream.feed(read(run).records(), final=True)
    assert [one.step for one in points] == sorted(one.step for one in points)
    rates = curve(points, "run/samples_per_s")
    assert sum(rates) / len(rates) == pytest.approx(RUN.samples_per_s, rel=0.1)
    assert sum(curve(points, "rank 2/share")) == pytest.approx(300)
    assert curve(points, "rank 2/share")[:3] == [10, 0, 0], "a worker between two steps has share 0"
    assert set(curve(points, "rank 2/compute_s")) == {1.5}
    losses = curve(points, "user/loss")
    assert len(losses) == 130
    said = results(run_data(read(run)).summary)
    assert said["run/mean_samples_per_s"] == pytest.approx(RUN.samples_per_s)


def test_the_trace_has_each_step(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["report", str(run), "--report", str(tmp_path / "page.html"), "--trace", str(tmp_path / "trace.json")])
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    computed = [row for row in rows if row["name"] == "compute"]
    assert [sum(row["tid"] == rank + 1 for row in computed) for rank in range(3)] == RUN.counts
    assert [row["args"]["iteration"] for row in computed if row["tid"] == 3] == list(range(30))
    assert {row["dur"] for row in computed if row["tid"] == 3} == {1.5e6}


def test_beside_a_run_whose_workers_wait(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    together = SampleRun(
        speeds_per_s=(60.0, 30.0, 10.0), global_batch=30, balanced=False, communicate_s=0.0, data_s=0.0, iterations=40
    ).write(tmp_path / "together")  # its slowest needs a second for 10 samples
    data = comparison.compared(comparison.named([together, run]))
    table = comparison.summary_table(data)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["samples/s"] for row in rows] == [count(30.0), RATE]
    assert rows[1]["÷ first"] == f"{30 / RUN.samples_per_s:.2f}"
    assert [row["time per global batch"] for row in rows] == ["1 s", f"{1e3 * 30 / RUN.samples_per_s:.3g} ms"]
    assert rows[1]["shares, %"] == "62 / 31 / 8"
    page = comparison.comparison_page(data)
    assert "Time per global batch" in page.figures
    assert {"together: share of the global batch", "apart: share of the samples"} <= set(page.figures)
    with pytest.raises(SystemExit):
        main(["report", str(together), str(run), "--report", str(tmp_path / "both.html")])
    assert "means over the whole time" in " ".join(capsys.readouterr().out.split())


def test_two_runs_whose_workers_wait_are_compared_as_before(tmp_path: Path) -> None:
    runs = [SampleRun(iterations=20).write(tmp_path / name) for name in "ab"]
    data = comparison.compared(comparison.named(runs))
    assert "time per iteration" in comparison.summary_table(data).columns
    assert not comparison.summary_note(data)


def test_where_nobody_knows_who_waits_the_report_says_so(tmp_path: Path) -> None:
    run = ApartRun(settings={"sync": "Mine(rate=2)"}).write(tmp_path / "own")
    assert "the journal lacks the workers' pace" in html.report_page(run).lead


def test_logged_values_of_a_resumed_run_stay_in_their_life(tmp_path: Path) -> None:
    """The faster worker's second life begins with the number of the slower one's step."""
    made, run = ApartRun(steps_s=(0.5, 0.25), for_s=10.0), tmp_path / "apart"
    for rank in range(2):
        writer = Writer(rank_path(run, rank))
        for value, first, start_s in ((1.0, 0, START_S), (0.0, 20, START_S + 1000.0)):
            for one in made.records(rank, first=first, start_s=start_s):
                writer.write(replace(one, value=value) if isinstance(one, ScalarRecord) else one)
        writer.close()
    points = PointStream().feed(read(run).records(), final=True)
    rows = run_data(read(run)).scalars["loss"]
    assert {row.value for row in rows} == {row.value for row in points if row.name == "user/loss"} == {0.0, 1.0}
