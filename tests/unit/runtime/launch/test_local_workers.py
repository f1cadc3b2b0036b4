"""The workers of a launcher, as its processes."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uneven.runtime.jobs import Events
from uneven.runtime.launch import local_workers, readiness
from uneven.runtime.launch.expendable import ExpendableWorkers
from uneven.runtime.launch.local_workers import LocalWorker, LocalWorkers
from uneven.runtime.rundir import mark_coming, mark_ready

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


class Recorded(LocalWorkers):
    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self.over: list[int] = []

    def ended(self, worker: LocalWorker) -> None:
        self.over.append(worker.rank)


def test_a_worker_that_does_not_die_is_named_and_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_workers, "_DIES_WITHIN_S", 0.2)
    with Events() as events:
        workers = Recorded(events)
        workers.start(0, 0, SLEEPS, {}, tmp_path / "error", stdin=None, stdout=None, stderr=None)
        process: Any = workers.running[0].process
        with monkeypatch.context() as deaf:
            deaf.setattr(type(process), "signal", lambda *_, **__: None)
            workers.kill()
        assert not workers.running
        assert f"process {process.pid} has not ended 0.2 s after SIGKILL" in caplog.text
        workers.start(0, 0, SLEEPS, {}, tmp_path / "error", stdin=None, stdout=None, stderr=None)
        process.signal(9, group=True)
        while process.ending is None:
            events.wait(5.0)
        assert workers.over == []  # its end is not that of the worker that has its rank now
        workers.kill()
        assert workers.over == [0]


def test_a_worker_that_starts_later_has_the_same_time_without_a_throttle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(readiness, "time", clock)
    ready = readiness.Readiness(tmp_path, 60.0)
    clock.now_s = 61.0
    assert not ready(os.getpid(), 0, 1)
    mark_coming(tmp_path, 0)
    mark_ready(tmp_path, 0)
    assert ready(os.getpid(), 0, 1)
    ExpendableWorkers(tmp_path).begin([0])
    assert not ready(os.getpid(), 0, 1)
    assert not caplog.text
    clock.now_s = 121.0
    assert ready(os.getpid(), 0, 1)
    assert "rank 0 did not start training within 60 s" in caplog.text
