"""Programs that are started, heard, told apart by how they end, and never left behind. All of them are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from uneven.runtime.jobs import Command, Ending, Events, How, Kept, Restarts, Stop, end_all
from uneven.runtime.jobs.parent_death import bound
from uneven.runtime.jobs.processes import import_path

SLEEPS = "import time; time.sleep(600)"
SHOT = "import os; os.kill(os.getpid(), 9)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
# No handler and a pause: a signal between the last look for signals and the pause would be waited for in vain.
WAITS = (
    "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [{number}]); print(flush=True); "
    "signal.sigwait([{number}]); sys.exit({code})"
)
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
{then}
"""


def line(text: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def until(done: Callable[[], bool]) -> None:
    while not done():
        signal.sigtimedwait([], 0.005)


def said(pipe: int) -> bytes:
    """The first that it says, which is soon."""
    return os.read(pipe, 100)


def speaks(text: str, **given: object) -> tuple[Command, int]:
    """A program, and the end of a pipe where it can be read."""
    ours, theirs = os.pipe()
    try:
        return Command("it", line(text), stdout=theirs, **given), ours  # type: ignore[arg-type]
    finally:
        os.close(theirs)


@pytest.mark.parametrize("kernel", [True, False], ids=["pidfd", "thread"])
def test_how_each_has_ended_is_heard(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:  # as on a system that has no descriptors of processes
        monkeypatch.delattr(os, "pidfd_open")
    heard: dict[str, Ending | None] = {}
    with Events() as events:
        for name, text in (("well", ""), ("wrong", "raise SystemExit(3)"), ("killed", SHOT)):
            Command(name, line(text), events=events, ended=lambda one: heard.update({one.name: one.ending}))
        while len(heard) < 3:
            events.wait(None)
    assert heard == {
        "well": Ending(How.ENDED, "exit code 0", 0),
        "wrong": Ending(How.FAILED, "exit code 3", 3),
        "killed": Ending(How.KILLED, "SIGKILL", -9),
    }
    assert {one.words for one in heard.values() if one} == {
        "ended with exit code 0", "ended with exit code 3", "was killed by SIGKILL",
    }  # fmt: skip
    assert Ending(How.LOST, "its machine").words == "was lost: its machine"
    assert Ending.of(-40).cause == "signal 40"


def test_it_is_asked_to_end_and_made_to() -> None:
    with Events() as events:
        heard: list[str] = []
        polite, pipe = speaks(WAITS.format(number=15, code=4), events=events, ended=lambda one: heard.append(one.name))
        deaf, other = speaks(DEAF, events=events, ended=lambda one: heard.append(one.name))
        assert said(pipe) == said(other) == b"\n"
        polite.signal(signal.SIGSTOP)  # it is continued, or it would not hear
        assert end_all([polite, deaf], 1.0) == [Ending.of(4), Ending.of(-signal.SIGKILL)]
        assert polite.end() == Ending.of(4)  # twice is no error
        assert deaf.kill() == Ending.of(-signal.SIGKILL)
        deaf.signal(signal.SIGTERM)
        events.wait(0.0)
        assert heard == []  # whoever has waited for it knows
        for one in (pipe, other):
            os.close(one)


def test_one_that_hangs_is_ended_and_says_so() -> None:
    with Command("it", line(SLEEPS)) as one:
        assert one.wait(0.0) is None
        assert one.kill(hung="no heartbeat for 300 s") == Ending(How.HUNG, "no heartbeat for 300 s", -9)
        assert one.ending is not None
        assert one.ending.words == "hung, so it was killed: no heartbeat for 300 s"
    ended = Command("it", line("raise SystemExit(3)"))
    ended.wait()
    assert ended.kill(hung="too late").how is How.FAILED


@pytest.mark.parametrize("then", ["", "import time; time.sleep(600)"], ids=["ends", "is ended"])
def test_what_it_has_started_ends_with_it(then: str) -> None:
    one, pipe = speaks(PARENT.format(then=then))
    below = int(said(pipe))
    os.close(pipe)
    if then:
        one.kill()
    else:
        one.wait()
    until(lambda: gone(below))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_nothing_is_left_when_the_program_is_killed_that_started_it(tmp_path: Path) -> None:
    program = f"""
import sys, time
from uneven.runtime.jobs import Command
one = Command("it", [sys.executable, "-I", "-S", "-c", {DEAF!r}], stdout=sys.stdout)
print(one.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": import_path()}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline() if (first := starter.stdout.readline()) == b"\n" else first)
        starter.kill()
    until(lambda: gone(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_one_whose_parent_has_ended_before_it_could_begin_does_not() -> None:
    command = [str(os.getppid()) if word == str(os.getpid()) else word for word in bound(["/bin/true"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "has ended before it could begin" in done.stderr) == (1, True)


def test_what_cannot_be_started_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert Command("it", ["/nowhere/program"]).wait() == Ending.of(1)
    assert "uneven: /nowhere/program cannot be started: No such file or directory" in capfd.readouterr().err


def test_it_is_started_again_until_that_is_hopeless() -> None:
    told: list[tuple[str, bool]] = []
    with Events() as events:

        def start(ended: Callable[[Command], None]) -> Command:
            return Command("it", line("raise SystemExit(5)"), events=events, ended=ended)

        kept = Kept(start, Restarts(quick_s=60.0), lambda ending, again: told.append((ending.words, again)))
        first = kept.process
        while kept.ends < 3:
            events.wait(None)
        assert told == [("ended with exit code 5", True)] * 2 + [("ended with exit code 5", False)]
        assert kept.process is not first
    assert Restarts().quick(2, lived_s=1.5) == 0  # it has lived: counted anew


def test_a_loop_is_woken_by_threads_and_signals_and_passes_these_on() -> None:
    with Events() as events:
        thread = threading.Thread(target=events.wake)
        thread.start()
        events.wait(None)
        thread.join()
        for _ in range(100_000):  # more than fits
            events.wake()
        events.wait(None)
        one, pipe = speaks(WAITS.format(number=15, code=9), events=events)
        assert said(pipe) == b"\n"
        os.close(pipe)
        with Stop(lambda number: (one.signal(number), events.wake())) as stop:  # type: ignore[func-returns-value]
            os.kill(os.getpid(), signal.SIGTERM)  # nohup has a hangup ignored
            while one.ending is None:
                events.wait(None)
        assert (stop.requests, one.ending) == (1, Ending.of(9))


def test_a_program_can_be_given_a_pipe_and_files(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    text = f"import os; os.write({theirs}, input().encode() + os.getcwd().encode())"
    with Command("it", line(text), stdin=subprocess.PIPE, files=[theirs], directory=tmp_path) as one:
        os.close(theirs)
        one.stdin.write(b"from ")
        one.stdin.write(b"\n")
        assert one.wait() == Ending.of(0)
    assert said(ours) == b"from " + bytes(tmp_path)
    os.close(ours)
