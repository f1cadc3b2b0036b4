"""Exchanges of parameters in the views: how many, how far apart, how stale."""

from __future__ import annotations

import io
import math
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from sample_runs import SampleRun

from uneven.journal import Follower, Writer, rank_path
from uneven.journal.pure.exchanges import Exchanged, staleness_told
from uneven.journal.report.html import report
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.screen import final
from uneven.policy.core.records import ExchangeRecord


def record(rank: int, iteration: int, gap: int = 8, late: int = 0, dropped: int = 0) -> ExchangeRecord:
    return ExchangeRecord(
        rank=rank, iteration=iteration, at_s=1e9 + iteration, moment="background" if late else "step", members=2,
        samples=80, gap=gap, late=late, took_s=0.01, sent_bytes=1_000_000, distance=0.25, dropped=dropped,
    )  # fmt: skip


def test_sums() -> None:
    one = Exchanged.of([record(0, 7), record(0, 19, gap=12, late=3, dropped=2)])
    assert (one.count, one.gap, one.gap_most, one.staleness, one.dropped) == (2, 10, 12, 1.5, 2)
    assert (one.sent_bytes, one.distance, one.took_s) == (2_000_000, 0.25, pytest.approx(0.01))
    assert math.isnan(Exchanged().gap)


def test_a_histogram_is_a_line() -> None:
    assert staleness_told(Counter()) == ""
    assert staleness_told(Counter({0: 1200, 2: 3})) == "0: 1,200 · 2: 3"
    assert staleness_told(Counter(dict.fromkeys(range(9), 1)), most=3) == "0: 1 · 1: 1 · 2+: 7"


def test_watch_and_report_show_them_where_there_are_any(tmp_path: Path) -> None:
    run = SampleRun(speeds_per_s=(100.0, 50.0), iterations=30, global_batch=60).write(tmp_path)
    console = Console(file=io.StringIO(), width=100)

    def shown() -> str:
        state = RunProgress()
        state.feed(Follower(run).poll())
        console.print(final(state, "run", 100))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    assert "exchanges" not in shown()
    assert "Exchanges of parameters" not in report(run)
    for rank in (0, 1):
        writer = Writer(rank_path(run, rank))
        writer.write(record(rank, 7))
        writer.write(record(rank, 15, late=2, dropped=1))
        writer.close()
    assert "4 exchanges  ·  8 steps apart  ·  4 MB sent  ·  1.0 steps stale  ·  2 skipped" in shown()
    page = report(run)
    assert "Exchanges of parameters" in page
    assert "<td>0.25</td>" in page
    assert "0: 1 · 2: 1" in page
