"""The workers of a launcher, as its processes."""

import sys
from pathlib import Path
from typing import Any

import pytest

from uneven.runtime.jobs import Events
from uneven.runtime.launch import local_workers
from uneven.runtime.launch.local_workers import LocalWorker, LocalWorkers

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
