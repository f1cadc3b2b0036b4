"""What processes run in the tests of ``uneven.runtime.jobs``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from uneven.errors import DataError
from uneven.runtime.jobs import call
from uneven.runtime.jobs.executor import ProcessLine
from uneven.runtime.jobs.heartbeat import Heartbeat


def answers(line: ProcessLine, factor: int) -> None:
    """Each message times a number."""
    pulse = Heartbeat(line.send)
    while True:
        number = line.recv()
        pulse.begin("number {}", number)
        line.send(("is", factor * number))


def ends(line: ProcessLine, how: str) -> None:
    """In one of the ways in which functions do."""
    if how == "raises":
        raise ValueError("not this one")
    if how == "is told":
        raise DataError("sample 3 is broken")
    if how == "leaves":
        sys.exit(3)
    if how == "is lost":
        os.kill(os.getpid(), 9)
    line.send(("last words", how))


def hangs(line: ProcessLine, *_: Any) -> None:
    """With a process of its own, in code that never asks for a message."""
    call.END_WITHIN_S = 0.0
    _starts_one(line)
    Heartbeat(line.send).begin("a sleep")
    while True:
        time.sleep(60)


def speaks(line: ProcessLine, *_: Any) -> None:
    """With a process of its own, for as long as somebody listens."""
    call.END_WITHIN_S = 600.0
    _starts_one(line)
    while True:
        Heartbeat(line.send).begin("a word")
        time.sleep(0.002)


def _starts_one(line: ProcessLine) -> None:
    below = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    line.send(("pids", os.getpid(), below.pid))
