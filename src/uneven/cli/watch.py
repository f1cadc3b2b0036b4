"""``uneven watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    run: Annotated[
        Path | None,
        typer.Argument(help="Run directory. By default the newest one under ./runs.", show_default=False),
    ] = None,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.05, help="Time between two looks.")] = 0.5,
) -> None:
    """Look at a run, live or afterwards, in the terminal.

    One row per worker: its speed, its share of the global batch, where the time of its steps goes, and the
    cores that it uses. A worker with no wait is the one that the others wait for; with a good split nobody
    waits much. "Of the limit" compares with everybody finishing together and communication for free.

    The view ends with the run, or with Ctrl-C, which does not touch the run; then a table of the whole run
    is printed. It only reads the run directory, so it can run on any machine that sees the directory.

    \b
    Examples:
      uneven watch                 the newest run
      uneven watch runs/NAME       this one, live or over
    """
    from uneven.journal.paths import newest_run
    from uneven.report import terminal

    terminal.watch(run if run is not None else newest_run(), every_s=every)
