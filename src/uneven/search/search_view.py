"""Show the progress of a search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from uneven.journal.report.console import Console
from uneven.search.engine import SearchSnapshot
from uneven.search.pure.trial_records import TrialRecord, TrialStatus

_ROWS = 16
_COLUMNS = {
    "trial": 5,
    "metric": 8,
    "curve": 8,
    "at": 3,
    "device": 6,
    "s/unit": 6,
    "left": 5,
    "state": 0,
    "settings": 0,
}
"""Characters of each; columns with 0 share the remaining width, and longer content is cut off."""

_NUMBERS = ("trial", "metric", "at", "s/unit", "left")
_BARS = "▁▂▃▄▅▆▇█"
_HELD = "held"
"""It was started, and waits for a faster device or for a state."""
_STATES = (*(status.value for status in TrialStatus), _HELD)
_ORDER = {TrialStatus.RUNNING: 0, TrialStatus.PAUSED: 1, TrialStatus.PENDING: 2}


@contextmanager
def live(metric: str, console: Console | None = None) -> Iterator[Callable[[SearchSnapshot], None]]:
    """Show a table on the terminal, or log a line for each trial that ends if the output is not a terminal."""
    console = console or Console(stderr=True)  # standard output stays free for results in a pipe
    if not console.is_terminal:
        yield _lines(metric, console)
        return
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        yield lambda moment: screen.update(view(moment), refresh=True)


def _lines(metric: str, console: Console) -> Callable[[SearchSnapshot], None]:
    told: set[int] | None = None

    def show(moment: SearchSnapshot) -> None:
        nonlocal told
        over = {one.number for one in moment.core.trials if one.over}
        for number in sorted(over - told) if told is not None else ():
            one = moment.core.trials[number]
            best = f"{metric} {moment.core.terms.sign * one.best:.6g}" if one.best == one.best else f"no {metric}"
            console.print(Text(f"trial {number}: {best} at {one.best_t:g}; {one.why.splitlines()[-1]}"), soft_wrap=True)
        told = over

    return show


def view(moment: SearchSnapshot) -> Group:
    core = moment.core
    counts = Counter(_state(one, moment) for one in core.trials)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, expand=True)
    for column, width in _COLUMNS.items():
        name = core.terms.metric if column == "metric" else column
        numbers: JustifyMethod = "right" if column in _NUMBERS else "left"
        if width:
            table.add_column(name, no_wrap=True, justify=numbers, min_width=width)
        else:
            table.add_column(name, no_wrap=True, ratio=1)
    shown = sorted(core.trials, key=lambda one: (_ORDER.get(one.status, 3), _worst(one), one.number))
    for one in shown[:_ROWS]:
        devices = moment.running.get(one.number, ())
        unit_s = moment.unit_s.get(one.number, math.nan)
        left_s = core.left(one.number, one.t) * unit_s
        table.add_row(
            str(one.number),
            f"{core.terms.sign * one.best:.5g}" if one.best == one.best else "–",
            sparkline([metric for _, metric in moment.curves.get(one.number, [])][-8:]),
            f"{one.t:g}",
            f"{', '.join(map(str, devices))} {moment.devices[devices[0]]}" if devices else "",
            f"{unit_s:.3g}" if unit_s == unit_s else "",
            f"{left_s:.0f} s" if math.isfinite(left_s) else "",
            Text(_state(one, moment) + (f": {one.why.splitlines()[-1][:40]}" if one.why else "")),
            Text(
                " ".join(
                    f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in one.params.items()
                )
            ),
        )
    said = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    moved = f"; {moment.moves} moves to faster devices" if moment.moves else ""
    learnt = f"; {core.learnt} earlier results known" if core.learnt else ""
    return Group(Text(f"{said} of {core.terms.trials} trials, {moment.took_s:.0f} s{moved}{learnt}"), table)


def _state(one: TrialRecord, moment: SearchSnapshot) -> str:
    held = one.status is TrialStatus.RUNNING and one.number not in moment.running
    return _HELD if held else one.status.value


def sparkline(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    return "".join(_BARS[round((value - low) / (high - low or 1.0) * (len(_BARS) - 1))] for value in known)


def _worst(one: TrialRecord) -> float:
    return -one.best if one.best == one.best else math.inf
