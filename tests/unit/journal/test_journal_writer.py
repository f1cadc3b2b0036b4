"""The writer: nothing lost by a kill, nothing broken by a full disk."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from uneven.errors import JournalError
from uneven.journal import Writer, rank_path, read
from uneven.policy.core.records import EventRecord, RunRecord, ScalarRecord, SplitRecord, StepRecord

RUN = RunRecord(run="r", rank=0, world_size=1, host="h", pid=1, started_at_s=1.0)

KILLED = """
import sys
from contextlib import contextmanager
from pathlib import Path
from uneven.policy.core.records import EventRecord
from uneven.journal import Writer
writer = Writer(Path(sys.argv[1]))
for i in range(int(sys.argv[2])):
    writer.write(EventRecord(rank=0, iteration=i, at_s=0.0, event="x", message="y"))
print("written", flush=True)
sys.stdin.read()
"""


def scalar(iteration: int, value: float = 0.5) -> ScalarRecord:
    return ScalarRecord(rank=0, iteration=iteration, at_s=1.0, name="nan", value=value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    split = SplitRecord(
        decided_at=0,
        iteration=1,
        shares=(1, 2),
        speeds_per_s=(1.0, math.inf),
        predicted_per_s=(2.0, 3.0),
        reason="",
    )
    written = (RUN, scalar(0), split, scalar(1, math.inf))
    with Writer(rank_path(tmp_path, 0)) as writer:
        for record in written:
            writer.write(record)
    assert read(tmp_path).ranks == {0: written}


def test_nan_in_a_split_survives(tmp_path: Path) -> None:
    split = SplitRecord(
        decided_at=0,
        iteration=0,
        shares=(1,),
        speeds_per_s=(math.nan,),
        predicted_per_s=(math.nan,),
        reason="",
    )
    with Writer(rank_path(tmp_path, 0)) as writer:
        writer.write(split)
    (back,) = read(tmp_path).ranks[0]
    assert isinstance(back, SplitRecord)
    assert math.isnan(back.speeds_per_s[0])
    assert math.isnan(back.predicted_per_s[0])


def test_a_kill_loses_nothing_that_write_returned_from(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), "2000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    records = read(tmp_path).ranks[0]
    assert [record.iteration for record in records if isinstance(record, EventRecord)] == list(range(2000))


def test_appending_after_a_torn_line_loses_only_that_line(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    with Writer(path) as writer:
        writer.write(RUN)
        writer.write(scalar(0))
    path.write_bytes(path.read_bytes()[:-10])
    assert read(tmp_path).unfinished == 1
    with Writer(path) as writer:
        writer.write(RUN)
        writer.write(scalar(1))
    journal = read(tmp_path)
    assert journal.ranks[0] == (RUN, RUN, scalar(1))
    assert journal.unfinished == 1


def test_unwritable_place_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file where the folder should be")
    with pytest.raises(JournalError, match=r"rank00000\.jsonl.*choose a writable run directory"):
        Writer(rank_path(tmp_path, 0))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is on Linux only")
def test_full_disk_warns_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Writer(Path("/dev/full")) as writer:
        for iteration in range(3):
            writer.write(scalar(iteration))
        assert writer.lost == 3
    assert len(caplog.records) == 1
    assert "training continues" in caplog.text


@contextmanager
def room(path: Path, for_bytes: int) -> Iterator[None]:
    """Inside, as much fits into the file and no more, as on a disk that fills."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + for_bytes, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_disk_that_fills_in_mid_line_costs_that_line(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    with Writer(path) as writer:
        writer.write(scalar(0))
        with room(path, 20):
            writer.write(scalar(1))
            writer.write(scalar(2))
        writer.write(scalar(3))
        assert writer.lost == 2
    journal = read(tmp_path)
    assert journal.ranks[0] == (scalar(0), scalar(3))
    assert journal.unfinished == 1


def test_of_several_at_once_those_that_fit_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    with Writer(path) as writer:
        writer.write(scalar(0))
        with room(path, path.stat().st_size + 20):
            writer.write(scalar(1), scalar(2), scalar(3))
        assert writer.lost == 2
        writer.write(scalar(4), scalar(5))
        assert writer.lost == 2
    journal = read(tmp_path)
    assert journal.ranks[0] == (scalar(0), scalar(1), scalar(4), scalar(5))
    assert journal.unfinished == 1


def test_a_closed_writer_says_so(tmp_path: Path) -> None:
    writer = Writer(rank_path(tmp_path, 0))
    writer.close()
    writer.close()
    with pytest.raises(JournalError, match="closed"):
        writer.write(RUN)


def test_a_record_is_cheap(tmp_path: Path) -> None:
    step = StepRecord(
        rank=0, iteration=12345, epoch=3, batch=128, global_batch=512, data_s=0.00123456789,
        compute_s=0.1234567891, exchange_s=0.02345678912, control_s=1.2345e-5, ended_at_s=1700000000.123456,
    )  # fmt: skip
    best_s = math.inf
    with Writer(rank_path(tmp_path, 0)) as writer:
        for _ in range(20):
            before_s = time.process_time()
            for _ in range(500):
                writer.write(step)
            best_s = min(best_s, (time.process_time() - before_s) / 500)
    assert best_s < 100e-6  # about 9 µs on a quiet machine; CPU time, so that a busy one does not matter
