"""The terminal view: what it knows, how it looks, when it ends."""

from __future__ import annotations

import io
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from sample_runs import START_S, SampleRun

from uneven.errors import JournalError
from uneven.journal import Follower, Writer, rank_path
from uneven.journal.report.pure import text
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.screen import final, live, stacked
from uneven.journal.report.terminal import WatchedRun, plain_line, watch
from uneven.policy.core.records import EventRecord, RunRecord

GROWING = """
import sys, time
from pathlib import Path
whole, grows = Path(sys.argv[1]), Path(sys.argv[2])
(grows / "journal").mkdir(parents=True, exist_ok=True)
files = {path.name: path.read_bytes() for path in (whole / "journal").iterdir()}
for part in range(10):
    for name, data in files.items():
        with (grows / "journal" / name).open("ab") as out:
            out.write(data[len(data) * part // 10 : len(data) * (part + 1) // 10])
    time.sleep(0.03)
"""


def state_of(run: Path) -> RunProgress:
    state = RunProgress()
    state.feed(Follower(run).poll())
    return state


def drawn(what: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=24)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_state_knows_plan_pace_and_end(tmp_path: Path) -> None:
    state = state_of(SampleRun(speeds_per_s=(100.0,), iterations=50, global_batch=100).write(tmp_path, end=False))
    state.planned = 150
    assert state.last is not None
    assert state.last.iteration == 48  # the newest is held back while the run goes on
    assert state.time_left_s() == pytest.approx(101 * 1.012)
    assert not state.ended
    state.feed([EventRecord(rank=0, iteration=50, at_s=0.0, event="end", message="")])
    assert state.ended
    assert state.last.iteration == 49
    assert state.total().iterations == 49
    assert state.now().iterations == 30


def test_a_small_last_iteration_does_not_pass_for_the_split(tmp_path: Path) -> None:
    SampleRun(iterations=20).write(tmp_path, end=False)
    small = SampleRun(iterations=21, global_batch=8)
    small.write(tmp_path, first=20, start_s=START_S + 3600)
    assert sum(state_of(tmp_path).shares().values()) == 512


def test_no_plan_no_estimate(tmp_path: Path) -> None:
    state = state_of(SampleRun().write(tmp_path))
    state.planned = None
    assert math.isnan(state.time_left_s())


@pytest.mark.parametrize("width", [80, 120])
def test_view_fits_and_shows_everybody(tmp_path: Path, width: int) -> None:
    state = state_of(SampleRun(noise=0.1).write(tmp_path / "lab", end=False))
    lines = drawn(live(state, "lab", width, 24), width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    page = "\n".join(lines)
    for word in (
        "iteration 59/60",
        "left",
        "samples/s",
        "waiting",
        "loss",
        "node0",
        "bad-report",
        "of the limit",
    ):
        assert word in page
    rows = [line.split() for line in lines if line.split()[1:2] == ["node0"]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert [row[3] for row in rows] == [str(share) for share in SampleRun().shares(50)]


def test_many_workers_stay_on_the_screen(tmp_path: Path) -> None:
    speeds = [100.0 + rank for rank in range(64)]
    state = state_of(SampleRun(speeds_per_s=speeds, global_batch=4096, noise=0.1).write(tmp_path, end=False))
    lines = drawn(live(state, "many", 80, 24), 80)
    assert len(lines) <= 24
    assert any("of 64 workers" in line for line in lines)
    assert len([line for line in drawn(final(state, "many", 80), 80) if " node" in line]) == 64


def test_events_are_whole_on_a_narrow_screen(tmp_path: Path) -> None:
    state, reason = RunProgress(), " ".join(f"reason{number}" for number in range(12))
    state.feed(Follower(SampleRun().write(tmp_path)).poll())
    for iteration in range(50, 54):
        state.feed([EventRecord(rank=0, iteration=iteration, at_s=0.0, event="split", message=reason)])
    for drawing in (live(state, "run", 80, 24), final(state, "run", 80)):
        lines = [line for line in drawn(drawing, 80) if "reason" in line]
        assert len(lines) == 4  # two events of two lines each, where five of one would fit
        assert " ".join(lines[0].split()[-5:] + lines[1].split()).endswith(reason[-60:])
        assert "…" not in "".join(lines)


def test_stacked_bar_is_exactly_as_wide_as_asked(tmp_path: Path) -> None:
    for worker in state_of(SampleRun(balanced=False).write(tmp_path)).total().workers:
        for width in (8, 17, 40):
            assert len(stacked(worker, width).plain) == width


def test_final_table_of_an_ended_run(tmp_path: Path) -> None:
    SampleRun().write(tmp_path / "lab")
    console = Console(file=io.StringIO(), width=100)
    watch(tmp_path / "lab", console=console)
    page = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("ended after iteration 60, epoch 3", "time per iteration", "limit", "prediction error"):
        assert word in page


def test_watching_a_growing_run_sees_all_of_it(tmp_path: Path) -> None:
    SampleRun(iterations=40).write(tmp_path / "whole")
    (tmp_path / "grows").mkdir()
    child = subprocess.Popen([sys.executable, "-c", GROWING, tmp_path / "whole", tmp_path / "grows"])
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    with child:
        state = watch(tmp_path / "grows", every_s=0.01, console=console)
    assert child.returncode == 0
    assert state.ended
    assert state.total() == state_of(tmp_path / "whole").total()


def test_a_run_whose_processes_are_gone_is_over(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run = {"run": "r", "rank": 0, "world_size": 1, "host": socket.gethostname(), "started_at_s": 4e9}
    with Writer(rank_path(tmp_path, 0)) as writer:
        writer.write(RunRecord(**run, pid=gone.pid))  # type: ignore[arg-type]
    console = Console(file=io.StringIO(), width=100)
    watch(tmp_path, console=console)
    assert "no iteration was finished" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_with_a_living_process_is_watched_until_told_to_stop(tmp_path: Path) -> None:
    run = {"run": "r", "rank": 0, "world_size": 1, "host": socket.gethostname(), "started_at_s": 4e9}
    with Writer(rank_path(tmp_path, 0)) as writer:
        writer.write(RunRecord(**run, pid=os.getpid()))  # type: ignore[arg-type]
    looks = iter([False, False, False, True])
    watch(tmp_path, every_s=0.0, console=Console(file=io.StringIO()), stop=lambda: next(looks))
    assert next(looks, "all used") == "all used"


def test_a_missing_run_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no run directory"):
        watch(tmp_path / "nowhere", console=Console(file=io.StringIO()))


def test_a_resume_while_watching_counts_each_iteration_once(tmp_path: Path) -> None:
    watched = WatchedRun(tmp_path)
    SampleRun(iterations=30).write(tmp_path, end=False)
    watched.update()
    SampleRun(iterations=40).write(tmp_path, first=20, start_s=START_S + 3600)
    state = watched.update()
    assert not state.rewound
    assert state.total() == state_of(tmp_path).total()
    assert state.total().iterations == 38


def test_plain_line(tmp_path: Path) -> None:
    assert plain_line(RunProgress()) == "waiting for the first iteration"
    assert "iteration 59/60" in plain_line(state_of(SampleRun().write(tmp_path, end=False)))


def test_numbers_read_well() -> None:
    assert [text.seconds(v) for v in (math.nan, 2e-5, 0.0123, 0.9999, 1.5, 3725)] == [
        "–", "20 µs", "12.3 ms", "1 s", "1.5 s", "1:02:05",
    ]  # fmt: skip
    assert [text.percent(v) for v in (math.nan, 0.0031, 0.0994, 0.0996, 0.127, 1.0)] == [
        "–", "0.3 %", "9.9 %", "10 %", "13 %", "100 %",
    ]  # fmt: skip
    assert [text.count(v) for v in (math.nan, 3.14159, 1234.5)] == ["–", "3.14", "1,234"]
