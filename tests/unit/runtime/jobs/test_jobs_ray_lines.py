"""Command lines on a Ray cluster, with a double of Ray: who is asked for again, and who is not."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest


@pytest.fixture(scope="module")
def ray_lines() -> Any:
    """Ray is imported by the process that runs these tests, not by each that collects them."""
    pytest.importorskip("ray")
    return importlib.import_module("uneven.runtime.jobs.ray_lines")


class DoubledRay:
    """Tasks end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.ended: dict[int, Any] = {}
        self.cancelled: list[tuple[int, bool]] = []
        self.changed = threading.Condition()

    def is_initialized(self) -> bool:
        return True

    def remote(self, **options: object) -> Callable[[Any], DoubledRay]:
        assert options == {"num_cpus": 2.0, "max_retries": 0}
        return lambda function: _Task(self)  # type: ignore[return-value] # stands where it does

    def wait(self, those: Sequence[int], *, num_returns: int = 1, timeout: float) -> tuple[list[int], list[int]]:
        with self.changed:
            self.changed.wait_for(lambda: any(one in self.ended for one in those), 0.01)
            found = [one for one in those if one in self.ended]
        return found, [one for one in those if one not in found]

    def get(self, one: int) -> int:
        if isinstance(self.ended[one], Exception):
            raise self.ended[one]
        code: int = self.ended[one]
        return code

    def cancel(self, one: int, *, force: bool) -> None:
        self.cancelled.append((one, force))

    def end(self, one: int, how: object, then: int) -> None:
        """And wait until so many have been asked for."""
        with self.changed:
            self.ended[one] = how
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(self.asked) >= then)


class _Task:
    def __init__(self, world: DoubledRay) -> None:
        self._world = world

    def remote(self, line: list[str], directory: str) -> int:
        with self._world.changed:
            self._world.asked.append(line)
            self._world.changed.notify_all()
            return len(self._world.asked) - 1


def test_one_that_is_lost_comes_again_and_one_that_fails_as_often_as_is_said(
    ray_lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import NodeDiedError

    world = DoubledRay()
    monkeypatch.setattr(ray_lines, "ray", world)
    told: list[str] = []
    lines = ray_lines.RayLines(lambda number: ["run", str(number)], 2, cores=2.0, again=1, told=told.append)
    world.end(0, NodeDiedError("its node is dead"), then=3)
    world.end(1, 1, then=4)
    world.end(2, 0, then=4)
    world.end(3, 1, then=4)
    lines._thread.join()
    lines.close()
    assert world.asked == [["run", str(number)] for number in range(4)]
    assert "its node is dead); another one comes when Ray has a place for it" in told[0]
    assert sorted(told[1:]) == [
        "a worker that Ray had placed ended with exit code 1; another one comes",
        "a worker that Ray had placed ended with exit code 1; no other one is asked for",
    ]


def test_those_that_do_not_end_with_the_run_are_ended(ray_lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = DoubledRay()
    monkeypatch.setattr(ray_lines, "ray", world)
    lines = ray_lines.RayLines(lambda number: ["run"], 2, cores=2.0, again=0, told=print)
    lines.close(within_s=0.0)
    begins_no_more, ends = [(0, False), (1, False)], [(0, True), (1, True)]
    assert world.cancelled == [*begins_no_more, *ends]


def test_one_that_runs_does_not_heed_that_it_may_not_begin(ray_lines: Any) -> None:
    """Ray raises an interrupt in a task that is cancelled; what the task has started would be killed by it."""
    interrupted = ["/bin/sh", "-c", f"kill -INT {os.getpid()}; exit 3"]
    before = signal.getsignal(signal.SIGINT)
    assert ray_lines._run(interrupted, "there is no such folder") == 3
    assert signal.getsignal(signal.SIGINT) is before
