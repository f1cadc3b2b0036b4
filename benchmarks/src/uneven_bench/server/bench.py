"""``uneven bench server``: the parameter server on the loopback of this machine.

Speed against a plain ZeroMQ copy, 64 workers against four shards for minutes, killed shards, and malformed messages.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from uneven_bench.harness.figures import shown
from uneven_bench.harness.show import Progress, table_of
from uneven_bench.server import copy as server_copy
from uneven_bench.server import crowd as server_crowd
from uneven_bench.server import restart as server_restart
from uneven_bench.server.fuzz import fuzz

BAR_OF_PLAIN = 0.5  # speed of push and pull over that of a plain copy


def run(quick: bool, data: str, progress: Progress) -> dict[str, Any]:
    """Measure all four. Result: ``copy`` (:func:`uneven_bench.server.copy.compare`), ``crowd``
    (:func:`uneven_bench.server.crowd.endure`), ``restart`` (:func:`uneven_bench.server.restart.compare`), ``fuzz``
    (``messages``, ``refused`` by reason, ``seconds``) and ``bar_of_plain``."""
    messages = 50_000 if quick else 1_000_000

    def say(phase: str) -> Callable[[str, float], None]:
        return lambda state, done: progress(phase, state, done)

    with tempfile.TemporaryDirectory(prefix="uneven-server-") as folder:
        place = Path(folder)
        copy = server_copy.compare(9 if quick else 31, say("copying"), place / "copy")
        restart = server_restart.compare(
            150 if quick else 600, 2 if quick else 6, data, say("killing shards"), place / "restart"
        )
        crowd = server_crowd.endure(20.0 if quick else 600.0, say("a crowd"), place / "crowd")
    progress("malformed messages", f"{messages:,}", 0.0)
    began_s = time.perf_counter()
    refused = fuzz(messages, seed=0)
    progress("malformed messages", "done", 1.0)
    return {
        "copy": copy,
        "restart": restart,
        "crowd": crowd,
        "fuzz": {"messages": messages, "refused": dict(refused), "seconds": time.perf_counter() - began_s},
        "bar_of_plain": BAR_OF_PLAIN,
    }


def tables(result: dict[str, Any]) -> list[Table]:
    return [_copy(result), _crowd(result["crowd"]), _restart(result["restart"]), _fuzz(result["fuzz"])]


def _copy(result: dict[str, Any]) -> Table:
    copy = result["copy"]
    rows = [
        (
            name,
            f"{1e3 * seconds:.1f}",
            *(shown(against[name], unit=" ×") if name in against else "" for against in copy["of"].values()),
        )
        for name, seconds in copy["seconds"].items()
    ]
    columns = ("", "ms", *(f"speed of {ours.removeprefix('push and pull, ')}" for ours in copy["of"]))
    return table_of(
        f"{copy['bytes'] / 2**20:g} MiB there and back; the bar is {result['bar_of_plain']:g}", columns, rows
    )


def _crowd(crowd: dict[str, Any]) -> Table:
    title = (
        f"{server_crowd.WORKERS} workers and {server_crowd.SHARDS} shards for {crowd['seconds']:g} s: "
        f"{crowd['steps']:,} steps, {crowd['lost']:g} lost"
    )
    rows = [
        (f"{who}, {name}", *(f"{value / unit:.0f}" for value in crowd[who][what]))
        for who in ("shards", "workers")
        for what, unit, name in (("memory_bytes", 1e6, "MB"), ("descriptors", 1, "files"), ("threads", 1, "threads"))
    ]
    columns = ("", *range(1, server_crowd.PARTS + 1))
    return table_of(title, map(str, columns), rows, caption="medians over tenths of the time", padding=(0, 1, 0, 0))


def _restart(restart: dict[str, Any]) -> Table:
    title = f"Shards killed {restart['kills']} times in {restart['steps']:,} steps of {server_restart.WORKERS} workers"
    rows = [
        (name, f"{restart[f'accuracy{ending}']:.1%}", f"{restart[f'unaccounted{ending}']:.1e}")
        for name, ending in (("undisturbed", "_undisturbed"), ("killed", ""))
    ]
    return table_of(title, ("", "accuracy", "greatest movement unaccounted for"), rows)


def _fuzz(found: dict[str, Any]) -> Table:
    rows = [(reason, f"{count:,}") for reason, count in sorted(found["refused"].items(), key=lambda pair: -pair[1])]
    title = f"{found['messages']:,} malformed messages in {found['seconds']:.0f} s"
    return table_of(title, ("refused because of", "messages"), rows)
