"""What preconditioners refresh, by owner: on the page of a run and in the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from uneven.journal import END, Writer, rank_path
from uneven.journal.pure.refreshes import Refreshes
from uneven.journal.report.html import report
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.screen import live
from uneven.policy.core.records import EventRecord, Record, RunRecord, ScalarRecord, StepRecord


def logged(rank: int, value: float, name: str = "KFAC/refresh_s") -> ScalarRecord:
    return ScalarRecord(rank=rank, iteration=0, at_s=1e9, name=name, value=value)


def records() -> list[Record]:
    return [
        RunRecord(run="run", rank=0, world_size=1, host="here", pid=2**22, started_at_s=1e9),
        StepRecord(
            rank=0, iteration=0, epoch=0, batch=8, global_batch=8, data_s=0.0, compute_s=1.0, exchange_s=0.0,
            control_s=0.0, ended_at_s=1e9 + 1,
        ),
        *(logged(0, 0.25), logged(0, 0.75), logged(1, 0.125), logged(0, 3.0, "loss")),
    ]  # fmt: skip


def test_refreshes_are_kept_by_owner_and_other_numbers_are_not_taken() -> None:
    refreshes = Refreshes()
    assert [refreshes.add(one) for one in records()[2:]] == [True, True, True, False]  # type: ignore[arg-type]
    assert refreshes.rows() == [("KFAC", 0, 2, 0.5, 0.75, 1.0), ("KFAC", 1, 1, 0.125, 0.125, 0.125)]


def test_the_page_and_the_terminal_show_them(tmp_path: Path) -> None:
    writer = Writer(rank_path(tmp_path, 0))
    for one in records():
        writer.write(one)
    writer.close()
    page = report(tmp_path)
    assert "Refreshes by owner" in page
    assert "KFAC/refresh_s" not in page
    state = RunProgress()
    state.feed([*records(), EventRecord(rank=0, iteration=0, at_s=1e9 + 2, event=END, message="")])
    console = Console(width=100, height=30)
    with console.capture() as found:
        console.print(live(state, "run", 100, 30))
    assert "KFAC refreshed, by owner: 750 ms  125 ms" in found.get()
