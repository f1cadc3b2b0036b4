"""The picture of the membership over time as Plotly's JSON."""

import math

from uneven.journal.pure.member_changes import MemberChange
from uneven.journal.pure.metrics import Iteration, ratio
from uneven.journal.report.pure import draw
from uneven.journal.report.pure.chart_series import RunData
from uneven.journal.report.pure.draw import Figure, colour
from uneven.journal.report.pure.text import seconds

# Mark, colour and words for each kind of change.
_ENDS = {
    "came": ("triangle-right", "#009e73", "joined"),
    "told": ("triangle-left", "#444444", "left on request"),
    "lost": ("x", "#d1605e", "lost"),
}


def start_s(run: RunData) -> float:
    founders = run.changes.founders() or ()
    known = [run.runs[worker].started_at_s for worker in founders if worker in run.runs]
    return min(known, default=run.changes.all[0].at_s)


def band(run: RunData) -> Figure:
    """Return a bar for each worker during its membership, over the seconds of the run, with marks at its ends."""
    zero_s = start_s(run)
    end_s = max([run.changes.all[-1].at_s, *(one.ended_at_s for one in run.iterations[-1:])]) - zero_s
    presence = run.changes.presence()
    data: list[Figure] = []
    for place, (worker, spans) in enumerate(sorted(presence.items())):
        bars = [(max(since - zero_s, 0.0), min(until - zero_s, end_s)) for since, until in spans]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": [worker] * len(bars),
                "base": [draw.rounded(since) for since, _ in bars],
                "x": [draw.rounded(until - since) for since, until in bars],
                "width": [0.7] * len(bars),
                "marker": {"color": colour(place, len(presence))},
                "opacity": 0.75,
                "showlegend": False,
                "hovertext": [f"rank {worker}: {seconds(since)} to {seconds(until)}" for since, until in bars],
                "hoverinfo": "text",
            }
        )
    return {"data": [*data, *_marks(run, zero_s)], "layout": _layout(len(presence), end_s)}


def _marks(run: RunData, zero_s: float) -> list[Figure]:
    found: dict[str, list[tuple[float, int, str]]] = {}
    for change in run.changes.all:
        for worker in change.came:
            found.setdefault("came", []).append((change.at_s - zero_s, worker, _hover(run, change)))
        for worker in change.left:
            how = "told" if worker in run.told_to_leave else "lost"
            found.setdefault(how, []).append((change.at_s - zero_s, worker, _hover(run, change)))
    return [
        draw.marks(
            [draw.rounded(at_s) for at_s, _, _ in found[how]],
            [worker for _, worker, _ in found[how]],
            words,
            {"symbol": symbol, "size": 11, "color": tint, "line": {"color": "#fff", "width": 1}},
            hovertext=[text for _, _, text in found[how]],
            hoverinfo="text",
        )
        for how, (symbol, tint, words) in _ENDS.items()
        if how in found
    ]


def _hover(run: RunData, change: MemberChange) -> str:
    return f"{change.why}; {run.iteration_name} {change.border}, a pause of {seconds(change.pause_s)}"


def _layout(workers: int, end_s: float) -> Figure:
    found = draw.layout("rank", x_title="seconds since the start", height=130 + 26 * min(workers, 24))
    found["xaxis"]["range"] = [0, end_s]
    found["yaxis"] |= {"autorange": "reversed", "showgrid": False, "zeroline": False}
    found["yaxis"] |= {"dtick": 1} if workers <= 24 else {}
    return found | {"barmode": "overlay", "hovermode": "closest"}


def rows(run: RunData) -> list[tuple[str, ...]]:
    """Return a row per change: time, iteration, joined, left, number of members, pause, pause in steps, reason."""
    zero_s = start_s(run)
    found: list[tuple[str, ...]] = []
    for change in run.changes.all:
        near = [_step_s(one) for one in run.iterations if abs(one.iteration - change.border) <= _NEAR]
        usual_s = draw.quantile(near, 0.5)
        steps = ratio(change.pause_s, usual_s)
        found.append(
            (
                seconds(change.at_s - zero_s),
                f"{change.border:,}",
                ", ".join(map(str, change.came)) or "–",
                ", ".join(map(str, change.left)) or "–",
                str(len(change.members)),
                seconds(change.pause_s),
                f"{steps:.2g}" if math.isfinite(steps) else "–",
                change.why,
            )
        )
    return found


def _step_s(one: Iteration) -> float:
    if not one.apart:
        return one.duration_s
    return ratio(sum(timing.total_s for timing in one.timings.values()), sum(t.steps for t in one.timings.values()))


_NEAR = 20  # iterations on either side whose median is the usual duration
