"""Write the report of a training as one HTML file: devices over time, and each member's curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from uneven.fleet.engine.fleet_state import RunState
from uneven.fleet.pure.converge import Epoch
from uneven.fleet.result_table import MemberRow
from uneven.journal.report.page import Page, PageTable
from uneven.journal.report.pure.draw import Figure, colour, layout, line
from uneven.journal.report.pure.gantt import Span, gantt

_GANTT_NOTE = (
    "A bar is a member on a device, from its first epoch with a group to its last. The dark part of its height is the "
    "share of the time in which it computed; the pale part waited for the shared samples or for the slower members. "
    "White is a device that nobody used."
)


def page(table: Sequence[MemberRow], state: RunState, metric: str, directory: Path) -> str:
    """Return the report as HTML that needs no network; `table` has the best member first."""
    trained = sum(row.status == "trained" for row in table)
    made = Page("Ensemble", f"{len(table)} members trained on shared data, in {directory}.")
    made.cards(
        [
            (f"{trained} of {len(table)}", "members trained"),
            (f"{state.wall_s:,.0f} s", "took"),
            (str(len(state.plan)), "flotillas"),
            (f"{state.prepared:,}", "samples prepared"),
            (f"{state.preprocess_cpu_s:,.0f} s", "processor time for it"),
        ]
    )
    made.table("Members", _members(table, state, metric))
    epochs = {name: [one for one in member.epochs if one.flotilla] for name, member in state.members.items()}
    spans = stretches(epochs)
    if spans:
        rows = 1 + max(number for span in spans for number in span.devices)
        made.figure("The plan over time", gantt(spans, rows, max(span.end_s for span in spans)), _GANTT_NOTE)
    made.figure(f"{metric} over time", _curves(epochs, metric, over_time=True))
    made.figure("Training loss by epoch", _curves(epochs, "training loss", over_time=False))
    return made.html()


def stretches(epochs: Mapping[str, Sequence[Epoch]]) -> list[Span]:
    """Return one span per member and flotilla, with the devices it used. Pure. `epochs` are in order of time."""
    found = []
    for name, mine in epochs.items():
        for _, group in groupby(mine, lambda one: (one.flotilla, one.devices)):
            together = list(group)
            computed_s = sum(one.train_s + one.validate_s - one.waited_s for one in together)
            start_s, end_s = together[0].began_s, together[-1].ended_s
            found.append((start_s, end_s, name, together[0].devices, computed_s / max(end_s - start_s, 1e-9)))
    spans: list[Span] = []
    for start_s, end_s, name, count, computed in sorted(found):
        # The state holds only numbers of devices. Those of one machine are identical, so each member gets the lowest
        # free ones.
        taken = {number for span in spans if span.end_s > start_s for number in span.devices}
        free = [number for number in range(len(taken) + count) if number not in taken]
        spans.append(Span(name, tuple(free[:count]), start_s, end_s, min(1.0, max(0.0, computed))))
    return spans


def _members(table: Sequence[MemberRow], state: RunState, metric: str) -> PageTable:
    rows = []
    for row in table:
        epochs = state.members[row.name].epochs
        busy_s = sum(one.train_s + one.validate_s for one in epochs)
        waited = sum(one.waited_s for one in epochs) / busy_s if busy_s else 0.0
        reached = f"{row.metric:.4f}" if row.best_epoch else "–"
        rows.append(
            (
                row.name,
                reached,
                str(row.epochs),
                str(row.best_epoch or "–"),
                f"{row.device_s:.1f}",
                f"{waited:.0%}",
                f"{row.status}: {row.reason}",
            )
        )
    headings = ("member", metric, "epochs", "best epoch", "device·s", "waited for data", "")
    return PageTable(headings, rows, frozenset({0, 6}))


def _curves(epochs: Mapping[str, Sequence[Epoch]], title: str, *, over_time: bool) -> Figure:
    names = sorted(name for name, mine in epochs.items() if mine)  # the plan's order, for the same colours
    data = []
    for place, name in enumerate(names):
        mine = epochs[name]
        x = [one.ended_s if over_time else float(number) for number, one in enumerate(mine, 1)]
        y = [one.metric if over_time else one.train_loss for one in mine]
        data.append(line(x, y, name, colour(place, len(names)), marks=len(x) <= 40))
    return {"data": data, "layout": layout(title, x_title="training time, s" if over_time else "epoch")}
