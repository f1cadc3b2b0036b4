"""Many workers against a few shards for minutes: checks for growth, and for lost or repeated updates."""

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from uneven.runtime.messages.process import shard_process
from uneven.runtime.parameter_server import Client, ZmqLine, make_keys, table_of
from uneven_bench.harness.program import begun_module, ended, wait_for, write_whole

WORKERS, SHARDS, PROCESSES = 64, 4, 4
ELEMENTS = 16_384
PACE_S = 0.1  # seconds between two steps of a worker
LEAD = 5
SAMPLES = 50
WATCHED = 0.9  # the part of the time with measurements
PARTS = 10  # parts of that time; use is reported for each
WHAT = ("memory_bytes", "descriptors", "threads")


def endure(seconds: float, say: Callable[[str, float], None], directory: Path) -> dict[str, Any]:
    """Let 64 workers, as threads of four processes, push to four shards and pull from them. Result: ``seconds``,
    ``steps`` (of all workers), ``lost`` (updates missing in the copy at the end), and for shards and workers each of
    ``WHAT`` over time: medians over its tenths, the first of which is the start."""
    make_keys(directory)
    shards = [shard_process(directory, shard, WORKERS) for shard in range(SHARDS)]
    each = WORKERS // PROCESSES
    who = range(0, WORKERS, each)
    crowds = [begun_module("uneven_bench.server.crowd", directory, first, each, seconds) for first in who]
    with ended([*shards, *crowds]):
        wait_for(lambda: len(list(directory.glob("began-*"))) == PROCESSES, "the workers' first step", 60.0)
        groups = {"shards": [shard.pid for shard in shards], "workers": [crowd.pid for crowd in crowds]}
        seen: dict[str, list[tuple[int, int, int]]] = {name: [] for name in groups}
        for number in range(SAMPLES):
            say(f"{WORKERS} workers", number / SAMPLES)
            time.sleep(WATCHED * seconds / SAMPLES)  # the workers still run at the last one
            for name, pids in groups.items():
                seen[name].append(_use(pids))
        left_s = (1 - WATCHED) * seconds
        wait_for(lambda: len(list(directory.glob("held-*"))) == PROCESSES, "the workers' last pull", left_s + 60.0)
        steps = sum(int(path.read_text()) for path in directory.glob("steps-*"))
        held = {float(path.read_text()) for path in directory.glob("held-*")}
    use = {name: _over_time(rows) for name, rows in seen.items()}
    return {"seconds": seconds, "steps": steps, "lost": steps - min(held), **use}


def _use(pids: list[int]) -> tuple[int, int, int]:
    ones = [psutil.Process(pid) for pid in pids]
    threads = sum(one.num_threads() for one in ones)
    return sum(one.memory_info().rss for one in ones), sum(one.num_fds() for one in ones), threads


def _over_time(rows: list[tuple[int, int, int]]) -> dict[str, list[float]]:
    each = len(rows) // PARTS
    parts = [rows[first : first + each] for first in range(0, PARTS * each, each)]
    return {name: [statistics.median(row[place] for row in part) for part in parts] for place, name in enumerate(WHAT)}


def main() -> None:
    """Be some of the workers."""
    directory, first, count, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    table = table_of([(ELEMENTS,)], "float32", SHARDS)
    arrays = [np.zeros(ELEMENTS, np.float32)]
    clients = [Client(rank, table, arrays, ZmqLine(directory, SHARDS)) for rank in range(first, first + count)]
    steps = [0] * count
    for client in clients:
        client.pull().result()
    (directory / f"began-{first}").touch()
    end_s = time.monotonic() + seconds

    def work(place: int) -> None:
        client, rng, mine = clients[place], random.Random(first + place), [arrays[0].copy()]
        one = [np.ones(ELEMENTS, np.float32)]
        while time.monotonic() < end_s:
            client.push_pull(steps[place], one, clock=max(0, steps[place] - LEAD)).into(mine)
            steps[place] += 1
            time.sleep(PACE_S * rng.uniform(0.5, 1.5))
        client.leave()  # the others must not wait for its clock

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
    write_whole(directory / f"steps-{first}", str(sum(steps)))
    while len(list(directory.glob("steps-*"))) < PROCESSES and os.getppid() != 1:
        time.sleep(0.05)
    clients[0].pull().into(arrays)
    assert arrays[0].min() == arrays[0].max()
    write_whole(directory / f"held-{first}", str(float(arrays[0][0])))
    for client in clients:
        client.close()


if __name__ == "__main__":
    main()
