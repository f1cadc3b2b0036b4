"""What ends with the program ends while large messages can still be sent."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import weakref

weakref.finalize(sys, int)  # as torch has one: from here on it is settled when the interpreter calls finalizers

import zmq
from uneven.runtime.at_exit import ends_with_the_program, program_ends

context = zmq.Context()
one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
one.bind("inproc://here")
other.connect("inproc://here")

def passes(name):
    one.send(bytes(1 << 20), copy=False)
    print(name, len(other.recv()), program_ends(), flush=True)

def fails():
    raise RuntimeError("this one has failed")

kept = [type("Thing", (), {})() for _ in range(3)]
noted = sys.argv[1] == "noted"
for thing, args in zip(kept, ((passes, "first"), (fails,), (passes, "last"))):
    ending = weakref.finalize(thing, *args)
    if noted:
        ends_with_the_program(ending)
passes("before")
"""


@pytest.fixture(scope="module")
def ended() -> dict[str, subprocess.CompletedProcess[str]]:
    ways = ("noted", "left to the interpreter")
    started = {way: subprocess.Popen([sys.executable, "-c", SCRIPT, way], stdout=-1, stderr=-1, text=True)
               for way in ways}  # fmt: skip
    said = {way: one.communicate(timeout=60) for way, one in started.items()}
    return {way: subprocess.CompletedProcess(way, started[way].returncode, *said[way]) for way in ways}


def test_large_messages_pass_at_the_end_newest_first_and_one_that_fails_is_told(
    ended: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    one = ended["noted"]
    assert one.stdout.splitlines() == ["before 1048576 False", "last 1048576 True", "first 1048576 True"]
    assert one.stderr.count("RuntimeError: this one has failed") == 1
    assert "gc socket" not in one.stderr


def test_finalizers_that_the_interpreter_calls_come_too_late_for_them(
    ended: dict[str, subprocess.CompletedProcess[str]],
) -> None:
    one = ended["left to the interpreter"]
    assert "before 1048576 False" in one.stdout
    assert one.stderr.count("RuntimeError: zmq gc socket requested during shutdown") == 2
