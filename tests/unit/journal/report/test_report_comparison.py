"""Two runs beside each other, a limit that follows the load, and pages as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_runs import SampleRun

from uneven.cli import main
from uneven.errors import JournalError
from uneven.journal.pure.metrics import Iteration, Timing
from uneven.journal.report import comparison, html
from uneven.journal.report.page import BESIDE, Page
from uneven.journal.report.pure.chart_series import moving_limit
from uneven.journal.report.pure.draw import layout, line


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def iteration(number: int, speeds: dict[int, float], batch: int = 10) -> Iteration:
    timings = {
        rank: Timing(rank=rank, batch=batch, data_s=0.0, compute_s=batch / speed, wait_s=0.0, communicate_s=0.0,
                     control_s=0.0)
        for rank, speed in speeds.items()
    }  # fmt: skip
    whole = batch * len(speeds)
    return Iteration(iteration=number, epoch=0, global_batch=whole, ended_at_s=number, duration_s=1.0, timings=timings)


def test_the_limit_follows_the_load() -> None:
    calm = [iteration(number, {0: 100.0, 1: 50.0}) for number in range(10)]
    loaded = [iteration(number, {0: 25.0, 1: 50.0}) for number in range(10, 20)]
    x, y = moving_limit([calm, loaded])
    assert x == [0, 10]
    assert y == pytest.approx([20 / 150, 20 / 75])


def test_a_worker_that_takes_nothing_is_as_fast_as_before() -> None:
    idle = iteration(10, {0: 100.0})
    idle = Iteration(
        iteration=10, epoch=0, global_batch=20, ended_at_s=10.0, duration_s=1.0, timings=idle.timings, members=(0, 1)
    )
    _, y = moving_limit([[iteration(0, {0: 100.0, 1: 50.0})], [idle]])
    assert y == pytest.approx([20 / 150, 20 / 150])


def test_two_runs_on_one_page_and_in_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    even, balanced = SampleRun(balanced=False).write(tmp_path / "even"), SampleRun().write(tmp_path / "balanced")
    assert command("report", even, balanced, "--report", tmp_path / "both.html") == 0
    printed = capsys.readouterr().out
    for row in ("time per iteration", "÷ first", "waits, %", "shares, %", "loss"):
        assert row in printed
    page = (tmp_path / "both.html").read_text()
    assert "<h1>even · balanced</h1>" in page
    assert "loss, by training time" in page
    table = comparison.summary_table(comparison.compared(comparison.named([even, balanced])))
    first, second = table.rows
    assert (first[0], first[2]) == ("even", "1.00")
    assert float(second[2]) < 0.9
    assert first[8] == "25 / 25 / 25 / 25"


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one, other = tmp_path / "a" / "run", tmp_path / "b" / "run"
    assert list(comparison.named([one, other])) == [str(one), str(other)]
    with pytest.raises(JournalError, match="name each run once"):
        comparison.named([one, tmp_path / "b" / ".." / "a" / "run"])


def test_a_trace_is_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report", tmp_path, tmp_path / "b", "--trace", "x") == 2
    assert "take one run" in capsys.readouterr().err


def test_plotly_may_lie_beside_the_page(tmp_path: Path) -> None:
    run = SampleRun(iterations=5).write(tmp_path / "run")
    assert command("report", run, "--separate-plotly", "--report", tmp_path / "out" / "page.html") == 0
    page = (tmp_path / "out" / "page.html").read_text()
    assert f'<script src="{BESIDE}">' in page
    assert len(page) < 300_000
    assert "Plotly" in (tmp_path / "out" / BESIDE).read_text()


def figures() -> Page:
    page = Page("Pictures")
    page.figure("Who's <b>there</b>?", {"data": [line([0, 1], [1.0, 2.0], "</script>", "red")], "layout": layout("y")})
    page.figure("nothing", {"data": [], "layout": layout("y")})
    page.figure("Second", {"data": [line([0, 1], [3.0, 2.0], "b", "blue")], "layout": layout("y", height=400)})
    return page


def test_a_page_is_one_string_or_two_files(tmp_path: Path) -> None:
    html.write_page(figures(), tmp_path / "inside.html")
    html.write_page(figures(), tmp_path / "beside.html", plotly_beside=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside.html", "inside.html", BESIDE]
