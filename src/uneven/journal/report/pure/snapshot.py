"""The pictures of predicted and measured speeds, and of the workers' cost curves."""

import math
from collections.abc import Mapping

from uneven.journal.pure.metrics import NAN
from uneven.journal.report.pure import draw
from uneven.journal.report.pure.chart_series import RunData, WorkerSeries
from uneven.journal.report.pure.draw import LINES_UP_TO, Figure, colour, time_unit
from uneven.journal.report.pure.text import percent

SNAPSHOTS_UP_TO = 32  # more workers do not get a small picture each

_PREDICTED = "#222"
_LOG_2 = 0.30103  # log10 of 2: a tick at every doubling of the batch


def snapshots(run: RunData, series: Mapping[int, WorkerSeries]) -> Figure:
    """Return each worker's measured speed and its prediction, in one small picture per worker."""
    errors = {worker.rank: worker.prediction_error for worker in run.summary.workers}
    layout, columns = draw.panels(len(series))
    data: list[Figure] = []
    for index, (rank, one) in enumerate(series.items()):
        place = "" if index == 0 else str(index + 1)
        where = {"xaxis": f"x{place}", "yaxis": f"y{place}"}
        top = 1.15 * max(draw.quantile(one.speed_per_s, 0.98), draw.quantile(one.predicted_per_s, 0.98))
        layout[f"xaxis{place}"] = draw.axis(run.iteration_name if index >= len(series) - columns else "")
        title = draw.axis("samples/s" if index % columns == 0 else "")
        layout[f"yaxis{place}"] = title | {"range": [0, top or 1], "nticks": 5}
        error = errors.get(rank, NAN)
        off = f", off by {percent(error)}" if error == error else ""
        layout["annotations"].append(draw.caption(f"rank {rank}{off}", place))
        measured = draw.line(one.iteration, one.speed_per_s, "measured", colour(index, len(series)))
        thin = {"legendgroup": f"rank {rank}", "showlegend": False} | ({"connectgaps": True} if run.connected else {})
        data.append(measured | thin | where)
        stairs = {"line": {"color": _PREDICTED, "width": 1.4, "dash": "dot", "shape": "hv"}}
        legend = {"legendgroup": "predicted", "showlegend": index == 0}
        data.append(draw.line(one.iteration, one.predicted_per_s, "predicted", _PREDICTED) | stairs | legend | where)
    return {"data": data, "layout": layout}


def cost_curves(run: RunData) -> Figure:
    """Return the seconds of a step over the batch, measured before the start; a cross: the batch did not fit."""
    ranks = sorted(run.profiles)
    scale, unit = time_unit(max((max(run.profiles[rank].seconds) for rank in ranks), default=1.0))
    data: list[Figure] = []
    for position, rank in enumerate(ranks):
        one, tint = run.profiles[rank], colour(position, len(ranks))
        group = {"legendgroup": f"rank {rank}"}
        times = [t * scale for t in one.seconds]
        data.append(draw.line(list(map(float, one.sizes)), times, f"rank {rank}", tint, marks=True) | group)
        if one.failed is not None:
            cross = {"mode": "markers", "marker": {"color": tint, "symbol": "x", "size": 10}, "showlegend": False}
            words = {"hovertemplate": f"{one.failed} samples do not fit; at most {one.most}"}
            found = draw.line([float(one.failed)], [times[-1]], f"rank {rank}", tint)
            data.append(found | cross | group | words)
    layout = draw.layout(f"{unit} per step", x_title="samples in the batch", height=380)
    layout["showlegend"] = len(ranks) <= LINES_UP_TO
    layout["xaxis"] |= {"type": "log", "dtick": _LOG_2}
    ticks = _ticks([t * scale for rank in ranks for t in run.profiles[rank].seconds])
    layout["yaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    return {"data": data, "layout": layout}


def _ticks(values: list[float]) -> list[float]:
    if not values:
        return []
    # 1, 2 and 5 times powers of ten, from below the least to above the greatest value.
    first, last = (math.floor(math.log10(one)) for one in (min(values), max(values)))
    return [float(f"{digit}e{power}") for power in range(first, last + 2) for digit in (1, 2, 5)]
