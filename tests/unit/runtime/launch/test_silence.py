"""Who neither ends nor uses the processor, reckoned in a made-up time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from uneven.runtime.launch import hang_detection
from uneven.runtime.launch.hang_detection import SilenceMeter, in_words, stopped

LIMIT_S = 100.0


def test_who_works_a_little_is_not_silent_and_who_stops_working_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, used_s = [1000.0], {1: 0.0, 2: 0.0}
    monkeypatch.setattr(hang_detection, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(hang_detection, "_cpu_s", lambda pid: used_s[pid])
    monkeypatch.setattr(hang_detection, "descendants", lambda pid: [2])
    monkeypatch.setattr(hang_detection, "stopped", lambda pid: False)
    pulse = SilenceMeter()

    def after(work_s: float, below_s: float = 0.0) -> float:
        """The silence a second later, in which it and what is below it have worked so long."""
        now_s[0] += 1.0
        used_s[1] += work_s
        used_s[2] += below_s
        return pulse.silent_s(1, LIMIT_S)

    assert after(0.0) == 0.0, "who was never asked for counts from now on"
    assert max(after(0.006) for _ in range(500)) < LIMIT_S
    assert max(after(0.0001) for _ in range(200)) > LIMIT_S, "threads that only wait do not count"
    assert after(3.0) == 0.0
    assert max(after(0.0, below_s=0.1) for _ in range(500)) < LIMIT_S, "a child works"
    after(0.0, below_s=-1.0)  # it has ended and taken its time along
    assert max(after(0.0) for _ in range(101)) > LIMIT_S


def test_who_was_stopped_is_told_from_who_only_waits() -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert in_words(child.pid, 7.2) == "hangs: it has used no processor time for 7 s"
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert stopped(child.pid)
        assert in_words(child.pid, 7.2).startswith("was stopped, by SIGSTOP or in a debugger")
        child.kill()
    assert not stopped(child.pid), "nor is one that has ended"
