"""The display of a bench: its progress on stderr, then its tables, then its result as JSON on request."""

import json
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.table import Table

from uneven.cli.progress import phases
from uneven.errors import UnknownNameError
from uneven.journal.report.console import Console
from uneven_bench.harness.tables import table_of as table_of
from uneven_bench.harness.tables import tables

Result = dict[str, Any]
Progress = Callable[[str, str, float], None]
"""Receives the phase, the current work, and the finished part of the phase, 0 … 1."""
Told = Callable[[str, float], None]
"""Receives the current work of a phase, and its finished part, 0 … 1."""

_WIDTH = 112  # columns of output without a terminal; the widest table takes 104


def chosen(case: str | None, known: Collection[str], usual: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the cases to play: ``case``, or the usual ones, or all. Raises UnknownNameError: no such
    case."""
    if case is not None and case not in known:
        raise UnknownNameError("case", case, known)
    return (case,) if case is not None else tuple(usual or known)


def show(run: Callable[[Progress], Result], as_json: bool, tables: Callable[[Result], list[Table]] = tables) -> None:
    """Run a bench, print tables of its result, and with ``as_json`` the result as one JSON object in the last line."""
    result = _measured(run)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    for table in tables(result):
        console.print(table)
    if as_json:
        print(json.dumps(result))


def _measured(run: Callable[[Progress], Result]) -> Result:
    with _ended_by_sigterm(), phases() as told:
        return run(told)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the bench and its processes, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
