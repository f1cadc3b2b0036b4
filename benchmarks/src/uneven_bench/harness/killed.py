"""Kills of processes, and programs that are started again with the same command until they end well."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress

from uneven.errors import TrainingError

MOST_STARTS = 5


def strike(pids: Iterable[int], dice: random.Random) -> bool:
    """Kill one of these processes with SIGKILL, and return whether one was there."""
    there = list(pids)
    if there:
        with suppress(ProcessLookupError):
            os.kill(dice.choice(there), signal.SIGKILL)
            return True
    return False


def begun(*words: object) -> subprocess.Popen[str]:
    """Start ``python -m WORDS…``; its errors are kept."""
    return subprocess.Popen([sys.executable, "-m", *map(str, words)], stderr=subprocess.PIPE, text=True)


def until_it_ends(*words: object, starts: int = 0) -> int:
    """Start a program again and again, and return the number of starts, ``starts`` before included. Raises
    TrainingError: it does not come to its end."""
    said = ""
    for number in range(starts + 1, MOST_STARTS + 1):
        with begun(*words) as child:
            said = child.communicate()[1]
        if child.returncode == 0:
            return number
    raise TrainingError(f"{words[0]} has not come to its end: {said[-500:]}")
