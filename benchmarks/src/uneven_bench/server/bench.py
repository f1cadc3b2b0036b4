"""``uneven bench server``: the parameter server on the loopback of this machine.

Speed against a plain ZeroMQ copy, 64 workers against four shards for minutes, killed shards, and malformed messages.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from uneven_bench.server import copy as server_copy
from uneven_bench.server import crowd as server_crowd
from uneven_bench.server import restart as server_restart
from uneven_bench.server.fuzz import fuzz
from uneven_bench.show import Progress, table_of

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
    each_mb = copy["bytes"] / 2**20
    table = Table(title=f"{each_mb:g} MiB there and back; the bar is {result['bar_of_plain']:g}", box=SIMPLE_HEAD)
    table.add_column("")
    table.add_column("ms", justify="right")
    for ours in copy["of"]:
        table.add_column(f"speed of {ours.removeprefix('push and pull, ')}", justify="right")
    for name, seconds in copy["seconds"].items():
        cells = []
        for against in copy["of"].values():
            middle, low, high = against.get(name, [1.0, 1.0, 1.0])
            cells.append(f"{middle:.2f} × [{low:.2f} … {high:.2f}]" if name in against else "")
        table.add_row(name, f"{1e3 * seconds:.1f}", *cells)
    return table


def _crowd(crowd: dict[str, Any]) -> Table:
    title = (
        f"{server_crowd.WORKERS} workers and {server_crowd.SHARDS} shards for {crowd['seconds']:g} s: "
        f"{crowd['steps']:,} steps, {crowd['lost']:g} lost"
    )
    table = Table(title=title, caption="medians over tenths of the time", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for part in range(server_crowd.PARTS):
        table.add_column(f"{part + 1}", justify="right")
    for who in ("shards", "workers"):
        for what, unit, name in (("memory_bytes", 1e6, "MB"), ("descriptors", 1, "files"), ("threads", 1, "threads")):
            table.add_row(f"{who}, {name}", *(f"{value / unit:.0f}" for value in crowd[who][what]))
    return table


def _restart(restart: dict[str, Any]) -> Table:
    title = f"Shards killed {restart['kills']} times in {restart['steps']:,} steps of {server_restart.WORKERS} workers"
    table = table_of(title, ("", "accuracy", "greatest movement unaccounted for"))
    for name, ending in (("undisturbed", "_undisturbed"), ("killed", "")):
        accuracy, unaccounted = restart[f"accuracy{ending}"], restart[f"unaccounted{ending}"]
        table.add_row(name, f"{accuracy:.1%}", f"{unaccounted:.1e}")
    return table


def _fuzz(found: dict[str, Any]) -> Table:
    table = table_of(
        f"{found['messages']:,} malformed messages in {found['seconds']:.0f} s", ("refused because of", "messages")
    )
    for reason, count in sorted(found["refused"].items(), key=lambda pair: -pair[1]):
        table.add_row(reason, f"{count:,}")
    return table
