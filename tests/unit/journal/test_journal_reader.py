"""Reading whole runs and following live ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sample_runs import SampleRun

from uneven.errors import JournalError
from uneven.journal import Follower, Writer, newest_run, plan_message, planned_iterations, rank_path, read
from uneven.policy.core.records import RunRecord, ScalarRecord, to_json


def scalar(rank: int, iteration: int) -> ScalarRecord:
    return ScalarRecord(rank=rank, iteration=iteration, at_s=1.0, name="loss", value=0.5)


def test_follower_returns_each_record_once_and_finds_late_files(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "run")
    assert follower.poll() == []
    with Writer(rank_path(tmp_path / "run", 0)) as first:
        assert follower.poll() == []
        first.write(scalar(0, 0))
        assert follower.poll() == [scalar(0, 0)]
        with Writer(rank_path(tmp_path / "run", 1)) as second:
            second.write(scalar(1, 0))
            first.write(scalar(0, 1))
            assert follower.poll() == [scalar(0, 1), scalar(1, 0)]
    assert follower.poll() == []
    assert follower.unfinished == 0


def test_follower_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    path.parent.mkdir()
    line = to_json(scalar(0, 7)) + "\n"
    path.write_text(line[:30])
    follower = Follower(tmp_path)
    assert follower.poll() == []
    assert follower.pending == 1
    with path.open("a") as stream:
        stream.write(line[30:])
    assert follower.poll() == [scalar(0, 7)]
    assert follower.pending == 0


def test_no_journal_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"no journal in .*rank00000\.jsonl"):
        read(tmp_path)


def test_foreign_line_names_file_and_line(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 3)
    path.parent.mkdir()
    path.write_text(to_json(scalar(3, 0)) + '\n{"rank":3}\n')
    with pytest.raises(JournalError, match=r"rank00003\.jsonl, line 2"):
        read(tmp_path)


def test_records_of_a_newer_version_are_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = rank_path(tmp_path, 3)
    path.parent.mkdir()
    path.write_text('{"kind":"unheard-of"}\n' * 3 + to_json(scalar(3, 0)) + "\n")
    assert read(tmp_path).ranks[3] == (scalar(3, 0),)
    assert [one.message for one in caplog.records if "unheard-of" in one.message] == [
        f"{path}: records of kind 'unheard-of' are skipped: a newer version of uneven wrote them"
    ]


def test_another_schema_is_refused(tmp_path: Path) -> None:
    record = RunRecord(run="old", rank=0, world_size=1, host="h", pid=1, started_at_s=0.0, schema=99)
    path = rank_path(tmp_path, 0)
    path.parent.mkdir()
    path.write_text(to_json(record) + "\n")
    with pytest.raises(JournalError, match="schema 99"):
        read(tmp_path)


def test_newest_run(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="uneven run"):
        newest_run(tmp_path)
    for name in ("b", "a"):
        SampleRun(iterations=2).write(tmp_path / name)

    for path in (tmp_path / "a" / "journal").iterdir():
        os.utime(path, (1, 1))
    (tmp_path / "not-a-run").mkdir()
    assert newest_run(tmp_path) == tmp_path / "b"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "run.toml").touch()
    os.utime(tmp_path / "c" / "run.toml", (4e9, 4e9))
    assert newest_run(tmp_path) == tmp_path / "b"
    assert newest_run(tmp_path, started_by="run.toml") == tmp_path / "c"


def test_plan_says_how_long() -> None:
    from uneven.policy.core.records import EventRecord

    plan = EventRecord(rank=0, iteration=0, at_s=0.0, event="plan", message=plan_message(1200))
    assert planned_iterations(plan) == 1200
    other = EventRecord(rank=0, iteration=0, at_s=0.0, event="note", message=plan_message(1200))
    assert planned_iterations(other) is None


def test_importing_the_journal_is_light() -> None:
    heavy = "uneven.journal; print([m for m in ('torch', 'plotly', 'rich', 'numpy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; import {heavy}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_journal_that_is_a_device_has_no_lines(tmp_path: Path) -> None:
    """As where the disk is full; such a device never ends, and neither did the reading of it."""
    path = rank_path(tmp_path, 0)
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    assert Follower(tmp_path, 1_000).poll() == []
