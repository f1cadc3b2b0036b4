"""Steps that several threads of a worker took side by side, in sums and views."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from uneven.journal import Follower, Writer, rank_path, read
from uneven.journal.pure.exchanges import Exchanged
from uneven.journal.pure.metrics import iterations
from uneven.journal.pure.summary import summarize
from uneven.journal.report.html import report
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.screen import final
from uneven.policy.core.records import ExchangeRecord, RunRecord, StepRecord

STEP_S = 0.2


def steps(rank: int, threads: int, count: int) -> list[StepRecord]:
    """Of threads that end at the same moment, again and again."""
    return [
        StepRecord(
            rank=rank, iteration=number, epoch=0, batch=8, global_batch=16, data_s=0.0, compute_s=STEP_S,
            exchange_s=0.0, control_s=0.0, ended_at_s=1e9 + STEP_S * (number // threads + 1), thread=number % threads,
            threads=threads,
        )
        for number in range(count)
    ]  # fmt: skip


def test_the_speed_of_a_worker_is_that_of_all_its_threads() -> None:
    both = [record for rank in (0, 1) for record in steps(rank, 2, 40)]
    one = summarize(iterations(both))
    assert [worker.speed_per_s for worker in one.workers] == pytest.approx([8 * 2 / STEP_S] * 2)
    assert one.samples_per_s == pytest.approx(16 * 2 / STEP_S)
    assert one.iteration_s == pytest.approx(STEP_S / 2)
    assert one.fraction_of_limit == pytest.approx(1.0)
    alone = summarize(iterations(record for rank in (0, 1) for record in steps(rank, 1, 40)))
    assert alone.samples_per_s == pytest.approx(16 / STEP_S)


def test_the_gap_is_that_of_each_thread() -> None:
    records = [
        ExchangeRecord(rank=0, iteration=11, at_s=1e9, moment="background", members=2, samples=96, gap=gap, threads=4)
        for gap in (12, 6)
    ]
    assert (Exchanged.of(records).gap, Exchanged.of(records).gap_most) == (2.25, 3.0)


def test_watch_and_report_show_the_steps_of_each_thread(tmp_path: Path) -> None:
    for rank, threads in ((0, 2), (1, 1)):
        writer = Writer(rank_path(tmp_path, rank))
        writer.write(RunRecord(run="run", rank=rank, world_size=2, host="here", pid=2**22 + rank, started_at_s=1e9))
        for record in steps(rank, threads, 31):
            writer.write(record)
        writer.close()
    state = RunProgress()
    state.feed(Follower(tmp_path).poll())
    console = Console(file=io.StringIO(), width=100)
    console.print(final(state, "run", 100))
    assert isinstance(console.file, io.StringIO)
    assert "2 threads  ·  15–16 steps each" in console.file.getvalue()
    page = report(tmp_path)
    assert "<h2>Threads</h2>" in page
    assert "<td>16</td><td>128</td>" in page.replace("\n", "").replace(' class="number"', "")
    assert len(list(read(tmp_path).records())) == 64
