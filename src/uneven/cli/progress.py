"""A progress bar on the terminal for what is simulated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

_EVERY_S = 0.05


@contextmanager
def bar(total: int, *, named: bool = False) -> Iterator[Callable[..., None]]:
    """Yields ``moved(done, name=None)``. It is drawn about twenty times a second at most, and whenever a name comes.

    Args:
        total: what ``done`` goes up to.
        named: show the name, not the number.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from uneven.report.console import Console

    said = TextColumn("{task.description}", markup=False) if named else MofNCompleteColumn()
    columns = (TextColumn("simulated"), BarColumn(), said, TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        task, shown_s = bars.add_task("", total=total), 0.0

        def moved(done: float, name: str | None = None) -> None:
            nonlocal shown_s
            if name is not None or perf_counter() - shown_s > _EVERY_S:
                shown_s = perf_counter()
                bars.update(task, completed=min(done, total), description=name)

        yield moved
