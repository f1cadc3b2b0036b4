"""Whom the others can do without, and what is told of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from uneven.errors import LaunchError
from uneven.runtime.launch.expendable import ExpendableWorkers
from uneven.runtime.launch.failure import Death, all_gone, blame, gone, through_without
from uneven.runtime.rundir import Expendable, clear_expendable, expendable_of, mark_expendable

KILLED = Death(rank=2, pid=102, exit_code=-signal.SIGKILL)
RAISED = Death(rank=1, pid=101, exit_code=1, told={"py_callstack": "Traceback …\nValueError: a bad label\n"})
FIRST = Death(rank=0, pid=100, exit_code=-signal.SIGTERM)


def test_a_worker_says_what_its_death_means_for_as_long_as_it_does(tmp_path: Path) -> None:
    workers = ExpendableWorkers(tmp_path)
    workers.begin([0, 1])
    assert not workers.bears(1), "who has said nothing is needed"
    mark_expendable(tmp_path, 1)
    mark_expendable(tmp_path, 0, Expendable("it held the copy"))
    assert [workers.bears(rank) for rank in (0, 1)] == [False, True]
    assert [workers.stops(rank) for rank in (0, 1)] == ["it held the copy", ""]
    clear_expendable(tmp_path, 1)
    clear_expendable(tmp_path, 1)  # as a session that never began to train
    assert not workers.bears(1)
    workers.lost[1] = RAISED
    workers.begin([0, 1])
    assert expendable_of(tmp_path, 0) is None, "words of an earlier start do not count"
    assert workers.lost == {}


def test_a_worker_outside_of_the_training_is_needed_and_may_hang(tmp_path: Path) -> None:
    workers = ExpendableWorkers(tmp_path)
    workers.begin([0, 1])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waiting, ExitStack() as end:
        end.callback(waiting.kill)
        alive = {0: waiting.pid}
        mark_expendable(tmp_path, 0, Expendable("", 0.5, training=False, idles=True))
        assert not workers.bears(0)
        os.kill(waiting.pid, signal.SIGSTOP)
        while not workers.hanging(alive):
            time.sleep(0.02)
        assert workers.silent[0].startswith("was stopped, by SIGSTOP")
        os.kill(waiting.pid, signal.SIGCONT)
        while workers.hanging(alive):
            time.sleep(0.02)
        mark_expendable(tmp_path, 0, Expendable("", 0.5, training=False))
        while not workers.hanging(alive):
            time.sleep(0.02)


def test_who_ends_with_its_session_open_is_remembered(tmp_path: Path) -> None:
    workers = ExpendableWorkers(tmp_path)
    workers.begin([0, 1])
    mark_expendable(tmp_path, 1, Expendable("", 8.0, training=False, idles=True))
    for rank in (0, 1):
        workers.leaves(rank, 100 + rank)
    clear_expendable(tmp_path, 1)
    workers.leaves(1, 101)
    assert [workers.left[rank].unclosed for rank in (0, 1)] == [False, True]


def test_who_ends_before_it_trains_through_the_parameter_server_is_remembered(tmp_path: Path) -> None:
    workers = ExpendableWorkers(tmp_path)
    workers.begin([0, 1, 2])
    mark_expendable(tmp_path, 0, Expendable("", 8.0, training=False, idles=True))  # other policies say no more
    mark_expendable(tmp_path, 1, Expendable("", 8.0, training=False))
    mark_expendable(tmp_path, 2, Expendable("", 8.0))
    for rank in (0, 1, 2):
        workers.leaves(rank, 100 + rank)
    assert [workers.left[rank].begun for rank in (0, 1, 2)] == [True, False, True]


def test_without_a_run_directory_nobody_can_say_so() -> None:
    workers = ExpendableWorkers(None)
    workers.begin([0])
    assert not workers.bears(0)
    assert workers.stops(0) == ""


def test_a_loss_is_told_at_once_and_at_the_end() -> None:
    assert gone(KILLED).startswith("rank 2 (process 102) was killed by SIGKILL; the others continue without it; unless")
    assert gone(RAISED).endswith("the others continue without it: ValueError: a bad label (see above)")
    refused = replace(RAISED, told={"py_callstack": "Traceback …\nuneven.errors.DataError: too small\n"})
    assert gone(refused).endswith("the others continue without it; its error is above")  # the message is printed once
    hidden = replace(RAISED, shown=False)  # what it printed has gone into a file
    assert gone(hidden).endswith("the others continue without it; its traceback:\nTraceback …\nValueError: a bad label")
    told, code = through_without([KILLED, RAISED])
    assert code == 0
    assert told == (
        "the run has finished without rank 2 (it was killed by SIGKILL), "
        "rank 1 (it ended with exit code 1: ValueError: a bad label)"
    )
    told, code = through_without([RAISED, FIRST])
    assert code == 128 + signal.SIGTERM
    assert told.endswith("rank 0 (it was killed by SIGTERM); the exit code is 143, as scripts save on rank 0")


@pytest.mark.parametrize("lost", [[], [RAISED]])
def test_the_end_of_the_run_is_told_with_those_lost_before(lost: list[Death]) -> None:
    before = (
        "\nbefore that, the others had continued without rank 1 (it ended with exit code 1: ValueError: a bad label)"
    )
    last = all_gone([*lost, KILLED])
    assert isinstance(last, LaunchError)
    assert last.exit_code == 137
    assert str(last).startswith("rank 2 (process 102) was killed by SIGKILL, and no worker is left; ")
    assert str(last).endswith(before) == bool(lost)
    here = all_gone([*lost, KILLED], here=True)
    assert str(here).startswith("rank 2 (process 102) was killed by SIGKILL, and no worker of this launcher is left; ")
    needed = Death(rank=0, pid=100, exit_code=7, stops="it held the copy")
    error = blame([needed], first_s=0.0, shutdown_within_s=10.0, lost=lost)
    assert error.exit_code == 7
    assert "so the run has been ended: it held the copy; see its output above" in str(error)
    assert str(error).endswith(before) == bool(lost)
