"""Interpreters that tests start are the ones of ``tests/interpreter``."""

import subprocess
import sys


def test_they_look_for_garbage_seldom_and_freeze_what_is_left_after_all_that_is_done_at_exit() -> None:
    told = "import atexit, gc; print(gc.get_threshold()); atexit.register(lambda: print(gc.get_freeze_count()))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["(100000, 50, 50)", "0"]
