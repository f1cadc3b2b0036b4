"""Who came and went, as the journal's records say it, and what follows for iterations, the terminal and the report."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console

from uneven import journal
from uneven.journal import LEFT, MemberChanges, Writer, rank_path
from uneven.journal.report import html
from uneven.journal.report.pure.chart_series import run_data
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.pure.member_rows import band, rows
from uneven.journal.report.screen import final
from uneven.policy.core.records import EventRecord, MembershipRecord, Record, RunRecord, StepRecord

KILLED = {"generation": 1, "members": (0, 2), "left": (1,), "border": 5, "why": "worker 1 is gone: it was killed"}
JOINED = {"generation": 2, "members": (0, 2, 3), "came": (3,), "border": 8, "why": "worker 3 has joined"}
GONE = {"generation": 3, "members": (2, 3), "left": (0,), "border": 11}
GONE["why"] = "worker 0 is gone: it got a request to leave"


def change(rank: int, at_s: float, pause_s: float, **what: object) -> MembershipRecord:
    return MembershipRecord(rank=rank, iteration=0, at_s=at_s, pause_s=pause_s, **what)  # type: ignore[arg-type]


def step(rank: int, iteration: int, batch: int, global_batch: int) -> StepRecord:
    return StepRecord(
        rank=rank, iteration=iteration, epoch=0, batch=batch, global_batch=global_batch, data_s=0.0, compute_s=0.5,
        exchange_s=0.1, control_s=0.0, ended_at_s=100.0 + iteration,
    )  # fmt: skip


def born(rank: int) -> RunRecord:
    return RunRecord(run="r", rank=rank, world_size=3, host="h", pid=2**22 + rank, started_at_s=99.0)


def records() -> dict[int, list[Record]]:
    """Of 12 samples a step: worker 1 dies in step 4 with its last two records, 3 joins at 8, and 0 leaves after 10."""
    told: dict[int, list[Record]] = {rank: [born(rank)] for rank in range(4)}
    for i in range(14):
        members = (0, 1, 2) if i < 5 else (0, 2) if i < 8 else (0, 2, 3) if i < 11 else (2, 3)
        for rank in members:
            if rank != 1 or i < 2:
                total = 8 if i == 4 else 12
                told[rank].append(step(rank, i, 4 if i == 4 else 12 // len(members), total))
    told[0] += [change(0, 105.0, 0.2, **KILLED), change(0, 108.0, 0.1, **JOINED)]
    told[0] += [EventRecord(rank=0, iteration=10, at_s=111.0, event=LEFT, message="worker 0 has left")]
    told[2] += [change(2, 105.1, 0.3, **KILLED), change(2, 108.1, 0.0, **JOINED), change(2, 111.0, 0.05, **GONE)]
    told[3] += [change(3, 111.1, 0.04, **GONE)]
    return told


def write(run: Path) -> Path:
    for rank, its in records().items():
        with Writer(rank_path(run, rank)) as writer:
            writer.write(*its)
    return run


def flat(told: dict[int, list[Record]]) -> Iterable[Record]:
    return (record for its in told.values() for record in its)


def test_everybody_who_was_there_tells_of_a_change_and_it_counts_once() -> None:
    changes = MemberChanges()
    new = [changes.add(one) for one in flat(records()) if isinstance(one, MembershipRecord)]
    assert new.count(True) == 3
    assert [(one.border, one.members, one.came, one.left, one.pause_s) for one in changes.all] == [
        (5, (0, 2), (), (1,), 0.3), (8, (0, 2, 3), (3,), (), 0.1), (11, (2, 3), (), (0,), 0.05),
    ]  # fmt: skip
    assert changes.founders() == (0, 1, 2)
    assert [changes.members(i) for i in (4, 5, 8, 11)] == [None, (0, 2), (0, 2, 3), (2, 3)]
    spans = {rank: its[0] for rank, its in changes.presence().items()}
    assert spans[1][1] == 105.0
    assert spans[3] == (108.0, float("inf"))


def test_a_step_counts_though_who_died_took_its_records_along() -> None:
    joined = journal.iterations(list(flat(records())))
    assert [one.iteration for one in joined] == list(range(14))
    assert [sorted(one.timings) for one in joined[1:6]] == [[0, 1, 2], [0, 2], [0, 2], [0, 2], [0, 2]]
    assert [one.global_batch for one in joined[3:6]] == [12, 8, 12]
    without = [one for one in flat(records()) if not isinstance(one, MembershipRecord)]
    assert [one.iteration for one in journal.iterations(without)] == [0, 1, *range(4, 14)]


def test_the_limit_is_of_those_that_are_there() -> None:
    joined = journal.iterations(list(flat(records())))
    speeds = {one.rank: one.speed_per_s for one in journal.summarize(joined).workers}
    there = [sum(speeds[rank] for rank in one.members) for one in joined[1:]]
    wanted = sum(12 / each for each in there) / len(there)
    assert journal.summarize(joined).limit_s == pytest.approx(wanted)


def test_the_terminal_follows_numbers_and_the_run_goes_on_without_worker_0() -> None:
    state = RunProgress()
    state.feed(flat(records()))
    assert not state.ended
    assert state.gone == {0, 1}
    assert state.shares() == {2: 6, 3: 6}
    state.feed(EventRecord(rank=rank, iteration=14, at_s=115.0, event="end", message="") for rank in (2, 3))
    assert state.ended
    console = Console(file=io.StringIO(), width=110)
    console.print(final(state, "r", 110))
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "2 workers  ·  1 joined  ·  2 left  ·  300 ms longest pause" in said
    assert [line.split()[3] for line in said.splitlines() if line.strip().startswith(("0 h", "1 h"))] == ["gone"] * 2
    assert "worker 1 is gone: it was killed; 2 continue after 200 ms" in said


def test_the_report_shows_who_was_there(tmp_path: Path) -> None:
    run = write(tmp_path / "r")
    data = run_data(journal.read(run))
    figure = band(data)
    bars = {one["y"][0]: (one["base"], one["x"]) for one in figure["data"] if one["type"] == "bar"}
    assert bars == {0: ([0.0], [12.0]), 1: ([0.0], [6.0]), 2: ([0.0], [14.0]), 3: ([9.0], [5.0])}
    marks = {one["name"]: one["y"] for one in figure["data"] if one["type"] == "scatter"}
    assert marks == {"joined": [3], "left on request": [0], "lost": [1]}
    assert [row[1:7] for row in rows(data)] == [
        ("5", "–", "1", "2", "300 ms", "0.3"),
        ("8", "3", "–", "3", "100 ms", "0.1"),
        ("11", "–", "0", "2", "50 ms", "0.05"),
    ]  # fmt: skip
    page = html.report(run)
    assert "4 workers, 2 to 3 at a time" in page
    assert "Workers that joined and left" in page
    assert "worker 1 is gone: it was killed" in page
