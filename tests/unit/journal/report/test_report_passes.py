"""Iterations in which a worker took several passes over its part, in the views."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from test_report_threads import steps

from uneven.journal import Follower, Writer, rank_path
from uneven.journal.report.html import report
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.screen import final
from uneven.policy.core.records import RunRecord


def test_watch_and_report_tell_passes_from_iterations(tmp_path: Path) -> None:
    for rank, passes in ((0, 3), (1, 1)):
        writer = Writer(rank_path(tmp_path, rank))
        writer.write(RunRecord(run="run", rank=rank, world_size=2, host="here", pid=2**22 + rank, started_at_s=1e9))
        for record in steps(rank, 1, 31):
            writer.write(replace(record, passes=passes))
        writer.close()
    state = RunProgress()
    state.feed(Follower(tmp_path).poll())
    console = Console(file=io.StringIO(), width=100)
    console.print(final(state, tmp_path.name, 100))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "passes in an iteration: 3 on rank 0" in " ".join(shown.split())
    assert "passes in an iteration" in report(tmp_path)
