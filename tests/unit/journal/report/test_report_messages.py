"""What passed between workers, by line, on the page of a run."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import RenderableType

from uneven.journal import Writer, rank_path
from uneven.journal.pure.messages import END, Messages
from uneven.journal.report.console import Console
from uneven.journal.report.html import report
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.screen import final, live
from uneven.policy.core.records import EventRecord, LineRecord, RunRecord, StepRecord


def line(rank: int, name: str, *, exchanges: int = 10, sent_bytes: int = 0, waited_s: float = 0.0) -> LineRecord:
    return LineRecord(
        rank=rank, iteration=0, at_s=1e9 + 1, line=name, exchanges=exchanges, sent_bytes=sent_bytes, waited_s=waited_s
    )


def test_records_of_one_line_add_up_and_the_busiest_line_comes_first() -> None:
    messages = Messages()
    for record in (
        *(line(0, "reports", sent_bytes=10), line(0, "gradients", sent_bytes=4000, waited_s=1.0)),
        *(line(0, "gradients", exchanges=5, sent_bytes=2000, waited_s=0.5), line(1, "gradients", waited_s=0.5)),
    ):
        messages.add(record)
    assert messages.rows() == [("gradients", 15, 6000, 1.0, 1.5), ("reports", 10, 10, 0.0, 0.0)]


def test_the_terminal_shows_them_too() -> None:
    state = RunProgress()
    step = StepRecord(
        rank=0, iteration=0, epoch=0, batch=8, global_batch=8, data_s=0.0, compute_s=1.0, exchange_s=0.0,
        control_s=0.0, ended_at_s=1e9 + 1,
    )  # fmt: skip
    run = RunRecord(run="run", rank=0, world_size=1, host="here", pid=2**22, started_at_s=1e9)
    state.feed([run, step, EventRecord(rank=0, iteration=1, at_s=1e9 + 2, event=END, message="")])
    assert "exchanges" not in shown(final(state, "run", 100))
    state.feed([line(0, "gradients", sent_bytes=3_000_000, waited_s=2.0), line(1, "gradients", waited_s=1.0)])
    for what in (final(state, "run", 100), live(state, "run", 100, 30)):
        assert "gradients: 10 exchanges  ·  3 MB sent  ·  waited 1.5 s, 2 s at most" in shown(what)


def shown(what: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(what)
    return out.getvalue()


def test_the_page_of_a_run_has_a_row_for_each_line(tmp_path: Path) -> None:
    writer = Writer(rank_path(tmp_path, 0))
    writer.write(RunRecord(run="run", rank=0, world_size=1, host="here", pid=2**22, started_at_s=1e9))
    writer.write(
        StepRecord(
            rank=0, iteration=0, epoch=0, batch=8, global_batch=8, data_s=0.0, compute_s=1.0, exchange_s=0.0,
            control_s=0.0, ended_at_s=1e9 + 1,
        )
    )  # fmt: skip
    writer.close()
    assert "Messages between workers" not in report(tmp_path)
    writer = Writer(rank_path(tmp_path, 0))
    writer.write(line(0, "gradients", sent_bytes=3_000_000, waited_s=2.0))
    writer.close()
    page = report(tmp_path)
    assert "Messages between workers" in page
    assert "<td>gradients</td>" in page or ">gradients<" in page
