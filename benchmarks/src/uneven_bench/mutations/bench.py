"""``uneven bench mutations``: thousands of damaged inputs; each is taken, or refused with one message.

:mod:`uneven_bench.mutations.make` makes them, and separate processes with little memory take them
(:mod:`uneven_bench.mutations.targets`). A fault is a foreign exception, a process that dies, or an input that takes too
long.
"""

import json
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from uneven.errors import LaunchError
from uneven_bench.harness.program import one_thread
from uneven_bench.harness.show import Progress

EACH = 800  # inputs for each target
QUICK_EACH = 50
SEED = 20261124
LIMIT_S = 20.0  # seconds of one input; the slowest good one takes a tenth of that on an idle machine
_STARTS_WITHIN_S = 120.0
_CHILD = [sys.executable, "-P", "-m", "uneven_bench.mutations.targets"]


@dataclass
class _Tried:
    """The results of a target's inputs."""

    verdicts: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Try every target. Result: ``inputs``, ``seed``; ``targets``: name → numbers taken and refused, and the faults by
    number of the input. Raises LaunchError: a test process does not start."""
    each = QUICK_EACH if quick else EACH
    said = subprocess.run([*_CHILD, "list"], stdout=subprocess.PIPE, env=one_thread(), timeout=_STARTS_WITHIN_S)
    if said.returncode:
        raise LaunchError(f"the process that tries inputs ended with exit code {said.returncode}")
    names = json.loads(said.stdout)
    found = {}
    for place, name in enumerate(names):
        begun = place / len(names)

        def moved(number: int, name: str = name, begun: float = begun) -> None:
            progress("inputs", name, begun + number / each / len(names))

        tried = attempt(name, each, moved)
        taken, refused = tried.verdicts["taken"], tried.verdicts["refused"]
        found[name] = {"taken": taken, "refused": refused, "faults": {str(n): why for n, why in tried.faults.items()}}
    return {"inputs": each * len(names), "seed": SEED, "limit_s": LIMIT_S, "targets": found}


def attempt(
    name: str, count: int, moved: Callable[[int], None] = lambda number: None, *, limit_s: float = LIMIT_S
) -> _Tried:
    """Try ``count`` inputs at one target, with a new process after each that one did not survive."""
    tried, first = _Tried(), 0
    while first < count:
        command = [*_CHILD, name, str(SEED), str(first), str(count - first)]
        # Unbuffered: no line may wait in a buffer of ours.
        piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "bufsize": 0}
        with subprocess.Popen(command, env=one_thread(), **piped) as child:
            try:
                first = _watch(child, tried, first, moved, limit_s)
            finally:
                child.kill()
    return tried


def _watch(
    child: subprocess.Popen[bytes], tried: _Tried, first: int, moved: Callable[[int], None], limit_s: float
) -> int:
    """Read the process's output to its end, and return the number of the next input. Raises LaunchError: it printed
    nothing."""
    assert child.stdout is not None
    begun = None
    while True:
        wait_s = limit_s if begun is not None else _STARTS_WITHIN_S
        if not select.select([child.stdout], [], [], wait_s)[0]:
            why = f"no end within {wait_s:g} s"
            break
        line = child.stdout.readline()
        if not line.endswith(b"\n"):
            why = f"the process ended with exit code {child.wait()}"
            break
        said = json.loads(line)
        begun = said.get("begun", begun)
        if "ended" in said:
            first = said["ended"] + 1
            if said["verdict"] in ("taken", "refused"):
                tried.verdicts[said["verdict"]] += 1
            else:
                tried.faults[said["ended"]] = said["verdict"]
            moved(first)
    if begun is None:
        raise LaunchError(f"the process that tries inputs has tried none: {why}")
    if begun >= first:
        tried.faults[begun] = why
        first = begun + 1
    return first
