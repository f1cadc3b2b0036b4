"""HTML pages, traces and TensorBoard files, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sample_runs import SampleRun

from uneven.cli import main
from uneven.errors import JournalError
from uneven.journal import Writer, rank_path, read
from uneven.journal.report import comparison, html, perfetto
from uneven.journal.report.page import PageTable
from uneven.journal.report.pure.chart_series import run_data, stretches
from uneven.journal.report.pure.draw import colour
from uneven.journal.report.track import tracker, tracking
from uneven.policy.core.records import EventRecord, RunRecord, ScalarRecord, StepRecord


class Seen(HTMLParser):
    """Collects headings, cells, addresses and embedded JSON."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.cells: list[str] = []
        self.addresses: list[str] = []
        self.figures: list[dict[str, Any]] = []
        self.scripts = 0
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kind = dict(attrs).get("type")
        self._inside = "json" if kind == "application/json" else tag
        self.scripts += tag == "script" and not kind
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._inside == "h2":
            self.headings.append(data)
        elif self._inside == "td":
            self.cells.append(data)
        elif self._inside == "json":
            self.figures.append(json.loads(data))
        self._inside = ""


def test_report_has_every_picture_and_needs_no_network(tmp_path: Path) -> None:
    page = html.report(SampleRun(noise=0.1).write(tmp_path / "lab"))
    seen = Seen(page)
    for heading in (
        "Workers", "Where each worker's time goes", "Share of the global batch", "Speed and its prediction",
        "Time per iteration", "loss", "accuracy", "Cores in use by the worker", "Events",
    ):  # fmt: skip
        assert heading in seen.headings
    assert seen.addresses == []
    assert seen.scripts == 1  # that unpacks Plotly and draws
    assert page.count('id="plotly"') == 1
    assert len(page) < 2_500_000, "it can be mailed"
    assert "GPU" not in seen.headings


def test_pictures_have_axis_names_and_steady_colours(tmp_path: Path) -> None:
    seen = Seen(html.report(SampleRun(noise=0.1).write(tmp_path)))
    by_title = dict(zip([h for h in seen.headings if h not in ("Workers", "Events")], seen.figures, strict=True))
    shares, speeds = by_title["Share of the global batch"], by_title["Speed and its prediction"]
    assert shares["layout"]["yaxis"]["title"]["text"] == "% of the global batch"
    assert sum(line["y"][-1] for line in shares["data"]) == pytest.approx(100, rel=1e-3)
    assert shares["layout"]["xaxis"]["title"]["text"] == "iteration"
    tints = {line["legendgroup"]: line["line"]["color"] for line in shares["data"]}
    measured = [line for line in speeds["data"] if line["name"] == "measured"]
    assert tints == {line["legendgroup"]: line["line"]["color"] for line in measured}
    assert len(set(tints.values())) == 4
    assert len({colour(rank, 64) for rank in range(64)}) == 64
    areas = by_title["Where each worker's time goes"]["data"]
    assert len(areas) == 4 * 4
    assert [area["name"] for area in areas if area["showlegend"]] == [
        "compute",
        "load data",
        "communicate",
        "wait",
    ]


def test_the_legend_covers_no_caption(tmp_path: Path) -> None:
    runs = {name: SampleRun(noise=0.1).write(tmp_path / name) for name in ("one", "other")}
    drawn = [seen["layout"] for seen in Seen(comparison.comparison(runs)).figures]
    captioned = [layout for layout in drawn if "annotations" in layout]
    assert len(captioned) == 3  # the mean of both, and each one's areas
    for layout in captioned:
        drawn = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
        size = max(one["font"]["size"] for one in layout["annotations"])
        assert (layout["legend"]["y"] - 1) * drawn >= 1.3 * size
        assert layout["margin"]["t"] >= (layout["legend"]["y"] - 1) * drawn + 1.3 * layout["font"]["size"]


def test_stacked_areas_add_up_to_the_step(tmp_path: Path) -> None:
    run = SampleRun(iterations=30).write(tmp_path)
    areas = next(f for f in Seen(html.report(run)).figures if len(f["data"]) == 16)["data"]
    tops = [sum(values) for values in zip(*(area["y"] for area in areas[:4]), strict=True)]
    data = run_data(read(run))
    unit = 1.0 if max(tops) < 100 else 1e3
    assert tops == pytest.approx([one.timings[0].total_s * unit for one in data.iterations], rel=1e-3)


def test_many_workers_and_long_runs_stay_small(tmp_path: Path) -> None:
    run = SampleRun(speeds_per_s=[100.0] * 64, global_batch=640, iterations=250).write(tmp_path)
    page = html.report(run)
    empty = html.report(_only_started(tmp_path / "empty"))
    assert len(page) - len(empty) < 2_000_000
    seen = Seen(page)
    assert "Prediction error" in seen.headings
    assert max(len(line["x"]) for figure in seen.figures for line in figure["data"]) <= 400


def _only_started(run: Path) -> Path:
    with Writer(rank_path(run, 0)) as writer:
        writer.write(RunRecord(run="r", rank=0, world_size=1, host="h", pid=1, started_at_s=1.0))
    return run


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script><b>"
    SampleRun(iterations=3).write(tmp_path)
    at: dict[str, Any] = {"rank": 0, "iteration": 1, "at_s": 1.7e9}
    with Writer(rank_path(tmp_path, 0)) as writer:
        writer.write(EventRecord(**at, event="bad", message=bad))
        writer.write(ScalarRecord(**at, name=bad, value=1.0))
        writer.write(ScalarRecord(**at, name="lost", value=float("nan")))
    page = html.report(tmp_path)
    assert "<script>alert" not in page
    seen = Seen(page)
    assert seen.scripts == 1
    assert bad in seen.cells


def test_comparison_shows_the_given_table_and_both_runs(tmp_path: Path) -> None:
    runs = {
        "DDP": SampleRun(balanced=False).write(tmp_path / "a"),
        "uneven": SampleRun().write(tmp_path / "b"),
    }
    table = PageTable(("run", "accuracy"), (("DDP", "0.971"), ("uneven", "0.972")))
    seen = Seen(comparison.comparison(runs, table, title="Demo"))
    assert seen.cells[:4] == ["DDP", "0.971", "uneven", "0.972"]
    assert "loss, by training time" in seen.headings
    losses = next(f for h, f in zip(seen.headings[1:], seen.figures, strict=True) if h.startswith("loss"))
    ends = {line["name"]: line["x"][-1] for line in losses["data"]}
    assert ends["DDP"] > 2 * ends["uneven"]
    assert Seen(comparison.comparison(runs)).cells[0] == "DDP"
    with pytest.raises(JournalError, match=r"'empty'.*no finished iteration"):
        comparison.comparison({"empty": _only_started(tmp_path / "empty")})


def test_stretches_cover_everything_once() -> None:
    for length in (0, 1, 7, 400, 1001):
        pieces = stretches(range(length), 400)
        assert [x for piece in pieces for x in piece] == list(range(length))
        assert len(pieces) == min(400, length)
        assert all(pieces)


def test_resumed_run_shows_each_logged_value_once(tmp_path: Path) -> None:
    sample = SampleRun(iterations=30)
    sample.write(tmp_path, end=False)
    replace(sample, iterations=40).write(tmp_path, first=20, start_s=1_700_003_600.0)
    data = run_data(read(tmp_path))
    assert [row.iteration for row in data.scalars["loss"]] == list(range(40))


def test_what_several_ranks_logged_is_shown_as_the_mean(tmp_path: Path) -> None:
    SampleRun(iterations=2).write(tmp_path)
    for rank, value in ((1, 3.0), (2, 5.0)):
        with Writer(rank_path(tmp_path, rank)) as writer:
            writer.write(ScalarRecord(rank=rank, iteration=1, at_s=1.7e9 + 2, name="theirs", value=value))
    assert [row.value for row in run_data(read(tmp_path)).scalars["theirs"]] == [4.0]


def test_trace_has_tracks_without_overlap(tmp_path: Path) -> None:
    run = SampleRun(noise=0.2).write(tmp_path / "lab")
    written = perfetto.write(run, tmp_path / "out" / "lab.json")
    document = json.loads((tmp_path / "out" / "lab.json").read_text())
    rows = document["traceEvents"]
    assert len(rows) == written
    assert [r["args"]["name"] for r in rows if r["name"] == "thread_name"] == [f"rank {i} (node0)" for i in range(4)]
    assert all(row["ts"] >= 0 for row in rows if row["ph"] != "M")
    for rank in range(4):
        slices = [row for row in rows if row["ph"] == "X" and row["tid"] == rank + 1]
        assert {row["name"] for row in slices} >= {"data", "compute", "communicate"}
        for before, after in pairwise(slices):
            assert after["ts"] >= before["ts"] + before["dur"] - 1.0  # µs of rounding
    counted = [row for row in rows if row["ph"] == "C" and row["name"] == "share of rank 0"]
    assert [row["args"]["samples"] for row in counted] == [SampleRun().shares(i)[0] for i in range(60)]
    assert [row["name"] for row in rows if row["ph"] == "i"] == ["bad-report", "split", "split"]


def test_trace_keeps_steps_apart_that_a_clock_pushed_together(tmp_path: Path) -> None:
    with Writer(rank_path(tmp_path, 0)) as writer:
        for iteration in range(3):
            writer.write(
                StepRecord(
                    rank=0, iteration=iteration, epoch=0, batch=8, global_batch=8, data_s=0.0, compute_s=1.0,
                    exchange_s=0.0, control_s=0.0, ended_at_s=1.7e9 + 0.5 * iteration,
                )
            )  # fmt: skip
    slices = [row for row in perfetto.events(run_data(read(tmp_path))) if row["ph"] == "X"]
    assert [(row["ts"], row["dur"]) for row in slices] == [(0.0, 1e6), (1e6, 1e6), (2e6, 1e6)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = SampleRun(iterations=12).write(tmp_path / "lab")
    assert tracking.write(run, tracker(f"tensorboard:{tmp_path / 'tb'}")) > 0
    events = accumulator.EventAccumulator(str(tmp_path / "tb" / "lab")).Reload()
    assert [e.step for e in events.Scalars("user/loss")] == list(range(12))
    assert [e.value for e in events.Scalars("rank 0/share")] == [SampleRun().shares(i)[0] for i in range(12)]
    assert len(events.Scalars("run/iteration_s")) == 11


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_take_the_newest_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SampleRun(iterations=5).write(here / "runs" / "one")
    with pytest.raises(SystemExit) as left:
        main(["report", "--trace", "t.json"])
    assert left.value.code == 0
    assert (here / "runs" / "one" / "report.html").stat().st_size > 1_000_000
    assert (here / "t.json").exists()
    with pytest.raises(SystemExit) as left:
        main(["watch"])
    assert left.value.code == 0
    assert "ended after iteration 5" in capsys.readouterr().out


def test_commands_say_what_is_missing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["report"], ["watch"], ["report", "nowhere"], ["watch", "nowhere"]):
        with pytest.raises(SystemExit) as left:
            main(command)
        assert left.value.code == 2
        assert "run" in capsys.readouterr().err


def test_an_unwritable_page_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="--report"):
        html.write("x", tmp_path / "file" / "page.html")
    with pytest.raises(JournalError, match="--trace"):
        perfetto.write(SampleRun(iterations=2).write(tmp_path / "r"), tmp_path / "file" / "t.json")
