"""A throttle that gives a process tree a share of a core, without root.

It stops and continues the processes in short periods, and remembers their overuse
(:mod:`uneven.runtime.throttle.share_rule`). It runs on Linux; the macOS code, on ``psutil``'s CPU times, is untested.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from typing import Any, Self

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.jobs.processes import descendants, import_path
from uneven.runtime.system import not_on_windows
from uneven.runtime.throttle.share_rule import ShareRule

_ANSWER_WITHIN_S = 20.0


class Throttle:
    """A limiter of process trees to shares of a core, in a small separate process.

    No process is left stopped: not when the throttle closes, not when this process ends or is killed, and not when the
    throttle's process is killed. Use it in a ``with`` block::

        with Throttle() as throttle:
            throttle.limit(worker.pid, 0.4)

    Args:
        period_s: length of one run-and-stop cycle; a shorter one is smoother and costs more.

    Raises:
        ConfigError: the period is not a positive number, or this is Windows.
        LaunchError: the process could not be started.
    """

    def __init__(self, *, period_s: float = 0.02) -> None:
        ShareRule(share=1.0, period_s=period_s)
        not_on_windows("shares of a core")
        self._limited: set[int] = set()
        self._lock = threading.Lock()
        self._helper = subprocess.Popen(
            [sys.executable, "-P", "-m", "uneven.runtime.throttle.throttle_loop", repr(float(period_s))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the user's process; this one ends after it
            env={**os.environ, "PYTHONPATH": import_path()},
        )
        try:
            self.pid: int = self._read()["pid"]  # of the process that stops and continues
        except LaunchError:
            self.close()
            raise

    def limit(self, pid: int, share: float) -> None:
        """Give ``pid`` and its descendants ``share`` of a core from now on; a second call changes the share.

        Raises:
            ConfigError: a wrong share; ``pid`` does not exist, is not ours, or is an ancestor of the throttle.
            LaunchError: the throttle has died; all processes run at full speed.
        """
        ShareRule(share=share)
        self._ask(do="limit", pid=pid, share=float(share))
        self._limited.add(pid)

    def release(self, pid: int) -> None:
        self._ask(do="release", pid=pid)
        self._limited.discard(pid)

    def stats(self) -> dict[str, Any]:
        """Return ``own_cpu_s``, the CPU time of the throttle, and ``used_s``, that of each limited process tree."""
        answer = self._ask(do="stats")
        answer["used_s"] = {int(pid): used for pid, used in answer["used_s"].items()}
        return answer

    @property
    def alive(self) -> bool:
        """True while the throttle's process runs."""
        return self._helper.poll() is None

    def close(self) -> None:
        """Continue all processes and end the throttle. Idempotent."""
        with self._lock:
            for pipe in (self._helper.stdin, self._helper.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                code = self._helper.wait(_ANSWER_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._helper.kill()
                code = self._helper.wait()
            if code != 0:
                # Both processes of the throttle may have been killed at the same time; this is the third safeguard.
                for root in self._limited:
                    for pid in (root, *descendants(root)):
                        _continue(pid)
            self._limited.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **command: Any) -> dict[str, Any]:
        with self._lock:
            if self._helper.stdin is None or self._helper.stdin.closed:
                raise LaunchError("the throttle is closed; make a new Throttle()")
            try:
                self._helper.stdin.write(json.dumps(command).encode() + b"\n")
            except BrokenPipeError:
                raise self._dead() from None
            answer = self._read()
        if "error" in answer:
            raise ConfigError(f"throttle: {answer['error']}")
        return answer

    def _read(self) -> dict[str, Any]:
        pipe = self._helper.stdout
        assert pipe is not None
        # A helper that hangs without closing its pipe would block readline forever.
        ready, _, _ = select.select([pipe], [], [], _ANSWER_WITHIN_S)
        line = pipe.readline() if ready else b""
        if not line:
            raise self._dead()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _dead(self) -> LaunchError:
        return LaunchError(
            "the throttle's process has died or does not answer, so all processes run at full speed; make a new "
            "Throttle()"
        )


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return
