"""``uneven bench machines``: faults of hosts, links, disks and clocks in runs on three hosts.

Each host is a network namespace with its launcher; the store of an elastic run is on a fourth. A seed and a number draw
each case (:mod:`uneven_bench.machines.cases`), and :mod:`uneven_bench.machines.judge` looks at its end.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from uneven.cluster.emulate.capabilities import why_no_latency
from uneven.errors import LaunchError
from uneven.testing.ranks import stop_pool
from uneven_bench.elastic.machines import why_no_machines
from uneven_bench.harness.faulty import numbers_of, play_all, summary, wrong_ends
from uneven_bench.harness.show import Progress
from uneven_bench.machines.cases import draw
from uneven_bench.machines.clock import build
from uneven_bench.machines.play import play

FAULTS, FEW = 300, 12
SEED = 1369  # its first twelve cases have each kind and each policy


def run(
    quick: bool, progress: Progress, seed: int | None = None, faults: int | None = None, only: str | None = None
) -> dict[str, Any]:
    """Play 300 cases, some at a time; with ``quick``, 12. ``seed``: draws the cases; ``faults``: their number;
    ``only``: one case, or "K-L". Result: ``seed``, ``faults``, ``right`` and ``wrong`` (numbers of ends), ``missed``
    (runs that ended before their fault), ``longest_s`` (from a fault to the last end), ``lost`` and ``twice`` (samples,
    against a promise), ``kinds`` (the number of each), ``clocks`` (False without a C compiler: clocks stay), ``left``
    (namespaces and mounts afterwards) and ``ends``: ``number``, ``case``, errors and output of each wrong one. Raises
    ConfigError: there are no such cases; LaunchError: this machine has no namespaces."""
    if problem := why_no_machines() or why_no_latency():
        raise LaunchError(f"uneven bench machines: {problem}")
    numbers = range(faults or (FEW if quick else FAULTS)) if only is None else numbers_of(only)
    seed = SEED if seed is None else seed
    before = _left()
    with _clocks() as clocks:
        played = play_all([draw(seed, number) for number in numbers], progress, play)
    ends = wrong_ends(played)
    return summary(seed, played, (strike.kind for one in played for strike in one.case.strikes)) | {
        "wrong": len(ends),
        "missed": [one.case.number for one in played if not one.struck],
        "lost": sum(one.lost for one in played),
        "twice": sum(one.twice for one in played),
        "clocks": clocks,
        "left": sorted(_left() - before),
        "ends": ends,
    }


@contextmanager
def _clocks() -> Iterator[bool]:
    """Load the library that shifts clocks into the processes of all cases."""
    with tempfile.TemporaryDirectory(prefix="uneven-clock-") as folder:
        library = build(Path(folder))
        stop_pool()  # it forks all processes, and may run already
        os.environ |= {"LD_PRELOAD": str(library)} if library is not None else {}
        try:
            yield library is not None
        finally:
            os.environ.pop("LD_PRELOAD", None)
            stop_pool()


def _left() -> set[str]:
    """Return the network namespaces that this process holds, and the mounts of cases that it sees."""
    mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    found = {f"mount {one}" for one in mounts if "/uneven-" in one}
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(os.readlink(one))
    return {one for one in found if one.startswith(("mount ", "net:"))}
