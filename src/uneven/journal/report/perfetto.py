"""The run as Chrome trace JSON (Google's "Trace Event Format"), for Perfetto (ui.perfetto.dev) and chrome://tracing.

The process "workers" has a track per rank with slices for data, compute, wait and communicate. Each rank also has a
counter of samples per iteration (per step if asynchronous). Events are flags.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uneven.errors import JournalError, access
from uneven.journal.pure.metrics import PHASES, Iteration, Timing
from uneven.journal.reader import read
from uneven.journal.report.pure.chart_series import RunData, run_data
from uneven.journal.report.screen import split_message

Event = dict[str, Any]
_WORKERS, _SHARES = 1, 2  # arbitrary process ids of the two groups of tracks


def write(run: Path, path: Path) -> int:
    """Write the trace of a run; return the number of trace events. Raises JournalError if a file cannot be used."""
    data = run_data(read(run), each=True)
    written = 0
    with access(f"write {path} (another file can be named with --trace)", JournalError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as out:
            out.write('{"displayTimeUnit":"ms","traceEvents":[')
            for written, event in enumerate(events(data), start=1):
                out.write(("\n" if written == 1 else ",\n") + json.dumps(event, separators=(",", ":")))
            out.write("\n]}\n")
    return written


def events(data: RunData) -> Iterator[Event]:
    """Yield all trace events; times in microseconds from the start of the first step."""
    first = data.iterations[0] if data.iterations else None
    origin_s = first.ended_at_s - longest_of(first) if first else 0.0
    yield from _names(data)
    free_us: dict[int, float] = {}
    for one in data.iterations:
        end_us = (one.ended_at_s - origin_s) * 1e6
        for rank, timing in one.timings.items():
            # A step may seem to start before the last one's end, but slices of a track must not overlap. Clocks of
            # different hosts are not corrected.
            start_us = max(end_us - timing.total_s * 1e6, free_us.get(rank, 0.0))
            yield from _slices(one, timing, start_us)
            free_us[rank] = start_us + timing.total_s * 1e6
            at_us = max(0.0, end_us - longest_of(one) * 1e6)
            args = {"samples": timing.batch}
            yield {"ph": "C", "pid": _SHARES, "tid": 0, "name": f"share of rank {rank}", "ts": _us(at_us), "args": args}
    at = {one.iteration: (one.ended_at_s - origin_s) * 1e6 for one in data.iterations if not one.apart}
    for event in data.events:
        ts = max(0.0, (event.at_s - origin_s) * 1e6)
        yield _flag(event.rank, ts, event.event, event.message)
    for split in data.splits:
        if split.decided_at in at:
            yield _flag(0, at[split.decided_at], "split", split_message(split))


def longest_of(one: Iteration) -> float:
    return max((timing.total_s for timing in one.timings.values()), default=0.0)


def _names(data: RunData) -> Iterator[Event]:
    yield _meta("process_name", _WORKERS, 0, name=f"{data.name}: workers")
    per = "step" if data.apart else "iteration"
    yield _meta("process_name", _SHARES, 0, name=f"{data.name}: samples per {per}")
    for rank in data.ranks:
        host = f" ({data.runs[rank].host})" if rank in data.runs else ""
        yield _meta("thread_name", _WORKERS, rank + 1, name=f"rank {rank}{host}")
        yield _meta("thread_sort_index", _WORKERS, rank + 1, sort_index=rank)


def _slices(one: Iteration, timing: Timing, start_us: float) -> Iterator[Event]:
    args = {"iteration": timing.newest if one.apart else one.iteration, "epoch": one.epoch, "samples": timing.batch}
    # The order is a simplification: the journal has only lengths, and the optimizer runs after the exchange.
    for name in PHASES:
        length_us = getattr(timing, f"{name}_s") * 1e6
        if length_us > 0:
            yield {"ph": "X", **_of(timing.rank, "step", name, start_us), "dur": _us(length_us), "args": args}
            start_us += length_us


def _flag(rank: int, at_us: float, name: str, message: str) -> Event:
    return {"ph": "i", "s": "t", **_of(rank, "event", name, at_us), "args": {"message": message}}


def _of(rank: int, category: str, name: str, at_us: float) -> Event:
    return {"pid": _WORKERS, "tid": rank + 1, "cat": category, "name": name, "ts": _us(at_us)}


def _meta(what: str, process: int, thread: int, **args: Any) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": args}


def _us(value: float) -> float:
    return round(value, 3)
