"""The progress of a command: a bar on a terminal, otherwise lines."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter
from typing import TextIO

from uneven.policy.core.printable import printable

_EVERY_S = 0.05
_LINE_EVERY_S = 10.0
_FIRST_S = 2.0  # until the first line of a simulation

Report = Callable[[str, str, float], None]


@contextmanager
def bar(total: int, *, named: bool = False) -> Iterator[Callable[..., None]]:
    """Yield ``moved(done, name=None)``, which draws at most about twenty times per second, and for each new name.
    ``named`` shows the name, not the number. Without a terminal it prints lines, the first after two seconds."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from uneven.journal.report.console import Console

    # On stderr, because stdout has the results and may be a pipe.
    said = TextColumn("{task.description}", markup=False) if named else MofNCompleteColumn()
    columns = (TextColumn("simulated"), BarColumn(), said, TimeElapsedColumn())
    # A notebook forces colours, but has no cursor to move.
    if not sys.stderr.isatty():
        report, last = lines(sys.stderr, first_s=_FIRST_S), ""

        def noted(done: float, name: str | None = None) -> None:
            nonlocal last
            last = name or last
            report("simulated", f"{done:.0f} of {total} {last}", done / total)

        yield noted
        return
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        task, shown_s = bars.add_task("", total=total), 0.0

        def moved(done: float, name: str | None = None) -> None:
            nonlocal shown_s
            if name is not None or perf_counter() - shown_s > _EVERY_S:
                shown_s = perf_counter()
                bars.update(task, completed=min(done, total), description=name)

        yield moved


@contextmanager
def phases() -> Iterator[Report]:
    """Yield ``progress(phase, state, done)``, which moves a bar for each phase; or see :func:`lines`."""
    from rich import progress as rich_progress

    from uneven.journal.report.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines(sys.stderr)
        return
    phase = rich_progress.TextColumn("{task.description}", markup=False)
    state = rich_progress.TextColumn("{task.fields[state]}", markup=False)
    times = (rich_progress.TimeElapsedColumn(), rich_progress.TimeRemainingColumn())
    columns = (phase, rich_progress.BarColumn(), state, *times)
    with rich_progress.Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, rich_progress.TaskID] = {}

        def progress(phase: str, state: str, done: float) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=1.0, state="")
            bars.update(tasks[phase], completed=done, state=state)

        yield progress


def lines(file: TextIO, clock: Callable[[], float] = monotonic, first_s: float = _LINE_EVERY_S) -> Report:
    """Return a ``progress(phase, state, done)`` for logs: it prints changes at most every ten seconds, and the end of
    each phase that had a line. Phases shorter than ``first_s`` print nothing. ``clock`` returns seconds."""
    said, said_s, spoken = "", clock() + first_s - _LINE_EVERY_S, set[str]()

    def progress(phase: str, state: str, done: float) -> None:
        nonlocal said, said_s
        line, now_s = f"{phase} {state}".rstrip(), clock()
        due = now_s - said_s >= _LINE_EVERY_S or (done >= 1 and phase in spoken)
        if line == said or not due:
            return
        said, said_s = line, now_s
        spoken.add(phase)
        print(f"uneven: {printable(line)}", file=file, flush=True)

    return progress
