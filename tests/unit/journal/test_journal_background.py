"""A writer beside the training: nothing is lost but the last moment, and closing leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from uneven.journal import BackgroundWriter, Writer, rank_path, read
from uneven.policy.core.records import EventRecord

CHILD = """
import sys, time
from pathlib import Path
from uneven.policy.core.records import EventRecord
from uneven.journal import BackgroundWriter, Writer
writer = BackgroundWriter(Writer(Path(sys.argv[1])), every_s=0.1)
for number in range(1000):
    writer.write(EventRecord(rank=0, iteration=number, at_s=0.0, event="x", message=""))
print("hangs", flush=True)
time.sleep(60)
"""


def _event(number: int) -> EventRecord:
    return EventRecord(rank=0, iteration=number, at_s=0.0, event="x", message="")


def test_everything_is_in_the_file_after_closing_in_order(tmp_path: Path) -> None:
    writer = BackgroundWriter(Writer(rank_path(tmp_path, 0)), every_s=60.0)
    for number in range(100):
        writer.write(_event(number))
    writer.close()
    writer.close()
    assert [record.iteration for record in read(tmp_path).ranks[0]] == list(range(100))
    assert writer.take_spent_s() > 0.0
    assert writer.take_spent_s() == 0.0
    assert not [thread for thread in threading.enumerate() if thread.name == "uneven-journal"]


def test_a_process_that_hangs_and_is_killed_has_written_what_came_before(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert _soon(partial(_has_lines, path, 1000))
        child.kill()
    assert len(read(tmp_path).ranks[0]) == 1000


def test_it_rests_while_nothing_comes_and_wakes_up_when_something_does(tmp_path: Path) -> None:
    path = rank_path(tmp_path, 0)
    writer = BackgroundWriter(Writer(path), every_s=0.01)
    for number in range(5):
        writer.write(_event(number))
        assert _soon(partial(_has_lines, path, number + 1))
        assert _soon(partial(_nothing_spent_in_ten_looks, writer))
    writer.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "uneven-journal"]


def _has_lines(path: Path, lines: int) -> bool:
    return path.read_bytes().count(b"\n") == lines


def _nothing_spent_in_ten_looks(writer: BackgroundWriter) -> bool:
    writer.take_spent_s()
    time.sleep(0.1)
    return writer.take_spent_s() == 0.0


def _soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20.0
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return held
