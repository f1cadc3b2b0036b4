"""The display of a bench: its progress on stderr, then its tables, then its result as JSON on request."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from uneven.cli.progress import phases
from uneven.journal.report.console import Console

Result = dict[str, Any]
Progress = Callable[[str, str, float], None]
"""Receives the phase, the current work, and the finished part of the phase, 0 … 1."""

_WIDTH = 112  # columns of output without a terminal; the widest table takes 104


def show(run: Callable[[Progress], Result], tables: Callable[[Result], list[Table]], as_json: bool) -> None:
    """Run a bench, print its tables, and with ``as_json`` its result as one JSON object in the last line."""
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


def table_of(
    title: str, columns: Iterable[str], rows: Iterable[Sequence[Any]] = (), *, narrow: bool = False, **more: Any
) -> Table:
    """Return a table for people: the first column to the left, the others to the right. ``narrow``: for many columns;
    ``more``: as rich's table takes it."""
    if narrow:
        more = {"collapse_padding": True, "pad_edge": False} | more
    found = Table(title=title, box=SIMPLE_HEAD, **more)
    for place, column in enumerate(columns):
        found.add_column(column, justify="right" if place else "left", no_wrap=narrow)
    for row in rows:
        found.add_row(*(one if isinstance(one, Text) else str(one) for one in row))
    return found


def bold(text: str, when: bool) -> Text:
    """Return a text, bold when it is ours or the best."""
    return Text(text, "bold" if when else "")


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
