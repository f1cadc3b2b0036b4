"""The HTML report of a run."""

from collections.abc import Mapping
from pathlib import Path

from uneven.errors import JournalError, access
from uneven.journal.pure.exchanges import Exchanged, staleness_told
from uneven.journal.pure.metrics import NAN, goodput
from uneven.journal.reader import read
from uneven.journal.report.page import Page, PageTable, write_beside
from uneven.journal.report.pure import changes, figures, member_rows, snapshot
from uneven.journal.report.pure.advice import advice
from uneven.journal.report.pure.chart_series import RunData, WorkerSeries, run_data, training_s
from uneven.journal.report.pure.draw import Figure
from uneven.journal.report.pure.text import count, percent, seconds, size, span
from uneven.journal.report.screen import change_message, split_message

_EVENTS = 500
STRAGGLER = "A worker that waits is too fast for its share. The worker that does not wait is the straggler."
_MEAN = "Each point is the mean over several steps."
_AREAS_NOTE = (
    f"{_MEAN} {STRAGGLER} Communication is the part of the exchange that the backward pass does not hide. The worker "
    "that arrives last measures it."
)
_APART_AREAS_NOTES = {
    False: f"{_MEAN} No worker waits for another. Communication is the time in which an exchange delays a step.",
    True: f"{_MEAN} Communication is the shortest exchange among the steps that end at about the same time. The rest "
    "of a longer exchange counts as waiting.",
}
_SHARES_NOTE = {
    False: "Each worker's part of an iteration. A line is flat while the split stays the same.",
    True: "Each worker's part of the samples that all workers took at about the same time.",
}
_LIMIT = {
    False: "all workers finish together and communication is free",
    True: "all workers compute all the time and communication is free",
}


def report(run: Path) -> str:
    return report_page(run).html()


def report_page(run: Path) -> Page:
    """Return the page of one run; raise JournalError if there is no readable journal."""
    return page_of(run_data(read(run)))


def page_of(data: RunData) -> Page:
    series = figures.all_series(data)
    page = Page(f"Run {data.name}", _lead(data), advice(data.summary, data.runs[0].settings if 0 in data.runs else {}))
    page.cards(_cards(data))
    page.table("Workers", _worker_table(data), f"Percentages are of a worker's own step time.{_apart_note(data)}")
    _add_members(page, data)
    page.figure(
        "Cost of a batch, measured before the start",
        snapshot.cost_curves(data),
        "One line for each worker, on logarithmic axes. Along a flat part a smaller batch is not faster. A cross marks "
        "a batch that does not fit in memory.",
    )
    if data.iterations:
        areas = figures.time_areas(data, series, figures.common_top_s([series]))
        note = _APART_AREAS_NOTES[data.waits] if data.apart else _AREAS_NOTE
        page.figure("Where each worker's time goes", areas, note)
        page.figure(*shares(data, series), _SHARES_NOTE[data.apart])
        _add_changes(page, data)
        _add_speeds(page, data, series)
        _add_passes(page, data, series)
        page.figure(
            f"Time per {data.iteration_name}",
            figures.durations({data.name: data}),
            ("The time in which all workers together take the samples of a global batch. " if data.apart else "")
            + f"Dashed: the limit, if {_LIMIT[data.apart]}, from the speeds measured at that time.",
        )
    for name, figure in figures.scalars(data).items():
        page.figure(name, figure, "The script logged these values. A value is the mean over the workers.")
    _add_exchanges(page, data)
    _add_messages(page, data)
    _add_refreshes(page, data)
    _add_threads(page, data)
    _add_loads(page, data)
    _add_events(page, data)
    return page


def shares(data: RunData, series: Mapping[int, WorkerSeries]) -> tuple[str, Figure]:
    of = "samples" if data.apart else "global batch"
    return f"Share of the {of}", figures.per_worker(data, series, "share_percent", f"% of the {of}")


def _apart_note(run: RunData) -> str:
    if not run.apart:
        return ""
    return (
        " Each worker takes separate steps, and samples/s is its own speed. The samples/s above are of all workers "
        "over the whole time."
    )


def _add_members(page: Page, data: RunData) -> None:
    if not data.changes:
        return
    page.figure(
        "Members over time",
        member_rows.band(data),
        "One bar for each worker while it takes part. The table below has the pause of each change.",
    )
    columns = ("after", data.iteration_name, "joined", "left", "workers", "pause", "in steps", "reason")
    border = (
        "Global batch: the number that all workers together had taken. "
        if data.apart
        else "Iteration: the first one that is divided among the new members. "
    )
    page.table(
        "Workers that joined and left",
        PageTable(columns, member_rows.rows(data), text=frozenset({2, 3, 7})),
        f"{border}Pause: the longest of a remaining worker, from its notice of the change until the new members have "
        "met. In steps: the pause divided by the usual duration of a step at that time.",
    )


def _add_exchanges(page: Page, data: RunData) -> None:
    if not data.exchanges:
        return
    columns = ("rank", "exchanges", "steps apart", "at most", "took", "sent", "distance", "skipped", "steps stale")
    rows = []
    for rank, records in sorted(data.exchanges.items()):
        one = Exchanged.of(records)
        rows.append(
            (
                *(str(rank), f"{one.count:,}", count(one.gap), f"{round(one.gap_most, 1):,g}", seconds(one.took_s)),
                *(size(one.sent_bytes), f"{one.distance:.2g}", f"{one.dropped:,}", staleness_told(one.late)),
            )
        )
    page.table(
        "Exchanges of parameters",
        PageTable(columns, rows, text=frozenset({0, 8})),
        "Means over the run. Distance: from a worker's parameters to the mean, just before they are averaged. Skipped: "
        "exchanges that did not start because another one was in flight, or came too late. Steps stale: the steps "
        "during an exchange, and the number of such exchanges.",
    )


def _add_messages(page: Page, data: RunData) -> None:
    rows = [
        (line, f"{exchanges:,}", size(sent_bytes), seconds(mean_s), seconds(most_s))
        for line, exchanges, sent_bytes, mean_s, most_s in data.messages.rows()
    ]
    if rows:
        page.table(
            "Messages between workers",
            PageTable(("line", "exchanges", "sent", "waited", "at most"), rows, text=frozenset({0})),
            "Sums over the run, by content of the messages. Exchanges: of one worker. Sent: by all workers, computed "
            "from the shapes of the tensors. Waited: by the training thread, as the mean over the workers. At most: of "
            "the worker that waited longest.",
        )


def _add_refreshes(page: Page, data: RunData) -> None:
    rows = [
        (part, str(rank), f"{times:,}", seconds(middle_s), seconds(most_s), seconds(all_s))
        for part, rank, times, middle_s, most_s, all_s in data.refreshes.rows()
    ]
    if rows:
        page.table(
            "Refreshes by owner",
            PageTable(("part", "rank", "refreshes", "median", "at most", "total"), rows, text=frozenset({0, 1})),
            "Each worker refreshes the bases that it owns. The events name the layers that keep their plain gradient.",
        )


def _add_threads(page: Page, data: RunData) -> None:
    if not data.threads:
        return
    rows = [
        (str(rank), str(thread), f"{steps:,}", f"{samples:,}")
        for rank, each in sorted(data.threads.items())
        for thread, (steps, samples) in sorted(each.items())
    ]
    page.table(
        "Threads",
        PageTable(("rank", "thread", "steps", "samples"), rows, text=frozenset({0, 1})),
        "Several threads of a worker train one replica, and a thread that is ready takes the next batch. In the table "
        "of exchanges, steps apart counts each thread's own steps.",
    )


def write_page(page: Page, path: Path, *, plotly_beside: bool = False) -> None:
    """Save a page, with Plotly in it or in a file next to it; raise JournalError if it cannot be written."""
    write(page.html(plotly_beside=plotly_beside), path)
    if plotly_beside:
        with access(f"write into {path.parent} (another file can be named with --report)", JournalError):
            write_beside(path.parent)


def write(html: str, path: Path) -> None:
    """Save an HTML text; raise JournalError if it cannot be written."""
    with access(f"write {path} (another file can be named with --report)", JournalError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")


def _lead(run: RunData) -> str:
    first = run.runs.get(0)
    parts = [f"{len(run.ranks)} worker{'s' if len(run.ranks) != 1 else ''}"]
    if run.changes:
        there = [len(change.members) for change in run.changes.all]
        there.append(len(run.changes.founders() or ()))
        parts[0] += f", {min(there)} to {max(there)} at a time"
    if first:
        parts += [f"{key} {first.settings[key]}" for key in ("balance", "sync") if key in first.settings]
        parts += [f"{first.world} world"] if first.world != "real" else []
    if run.apart:
        parts.append("each worker takes separate steps, and a step counts at its end")
    if not run.known:
        parts.append("the journal lacks the workers' pace, so their steps are joined by number")
    if run.unfinished:
        parts.append(f"{run.unfinished} incomplete lines skipped, which a killed worker left")
    return " · ".join(parts)


def _cards(run: RunData) -> list[tuple[str, str]]:
    s = run.summary
    trained_s = max(training_s(run.iterations).values(), default=NAN)
    several = "global batches of samples" if run.apart else "iterations"
    return [
        (f"{len(run.iterations):,}", f"{several} in {span(trained_s)}"),
        (
            seconds(s.iteration_s),
            f"per {run.iteration_name} ({seconds(s.iteration_low_s)} … {seconds(s.iteration_high_s)})",
        ),
        (count(s.samples_per_s), "samples/s"),
        (percent(s.wait_share), "of the time waiting"),
        *([(percent(s.communicate_share), "communicating")] if run.apart else []),
        (percent(s.fraction_of_limit), f"of the limit ({seconds(s.limit_s)})"),
        (percent(s.control_share), "measuring and deciding"),
        *([(percent(goodput(run.iterations, run.changes)), "of the members' capacity used")] if run.changes else []),
    ]


def _worker_table(run: RunData) -> PageTable:
    steps = ("steps", "time per step") if run.apart else ()
    columns = (
        "rank", "host", "samples", *steps, "samples/s", "compute", "load data", "communicate", "wait", "control",
        "prediction error",
    )  # fmt: skip
    rows = []
    for w in run.summary.workers:
        host = run.runs[w.rank].host if w.rank in run.runs else "?"
        shares = (w.compute_share, w.data_share, w.communicate_share, w.wait_share, w.control_share)
        rows.append(
            [str(w.rank), host, f"{w.samples:,}"]
            + ([f"{w.steps:,}", seconds(w.step_s)] if run.apart else [])
            + [count(w.speed_per_s)]
            + [percent(value) for value in (*shares, w.prediction_error)]
        )
    return PageTable(columns, rows, frozenset({1}))


def _add_changes(page: Page, run: RunData) -> None:
    figure = changes.batches_and_times(run, figures.points(run))
    about = "Each worker's samples, and the time of its own part of a step: data, compute, its side of the exchange."
    if figure["layout"]["annotations"]:
        about += " Dashed: events of the cluster."
    if any(trace.get("name") in changes.PHASES for trace in figure["data"]):
        about += " Shaded: the phases of the method."
    page.figure("Batch sizes and batch times", figure, about)


def _add_speeds(page: Page, run: RunData, series: Mapping[int, WorkerSeries]) -> None:
    if len(series) <= snapshot.SNAPSHOTS_UP_TO:
        page.figure(
            "Speed and its prediction",
            snapshot.snapshots(run, series),
            "Solid: the measured speed, in samples per second of a worker's own time. Dotted: the prediction in its "
            "newest report. Off by: the median error of its predictions.",
        )
        return
    speed = figures.per_worker(run, series, "speed_per_s", "samples/s of own time")
    page.figure("Speed and its prediction", speed, "The measured speeds, without waiting and communicating.")
    page.figure("Prediction error", figures.prediction_map(run, series), "White: the prediction is right.")


def _add_passes(page: Page, run: RunData, series: Mapping[int, WorkerSeries]) -> None:
    if any(count > 1.0 for one in series.values() for count in one.passes):
        drawn = figures.per_worker(run, series, "passes", f"passes in {'a step' if run.apart else 'an iteration'}")
        page.figure(
            "Passes",
            drawn,
            "Forward and backward passes over a worker's part of the batch, if it does not fit in memory.",
        )


def _add_loads(page: Page, run: RunData) -> None:
    page.figure("Cores in use by the worker", figures.loads(run, "cores", lambda row: row.process_cpu))
    page.figure("CPU of the machine", figures.loads(run, "% of all cores", lambda row: 100 * row.machine_cpu))
    page.figure("Memory of the worker", figures.loads(run, "memory, GB", lambda row: row.process_memory_bytes / 1e9))
    page.figure("Memory of the machine", figures.loads(run, "% of memory", lambda row: 100 * row.machine_memory))
    page.figure("GPU", figures.loads(run, "% in use", lambda row: None if row.gpu is None else 100 * row.gpu))
    page.figure(
        "Memory of the GPU",
        figures.loads(
            run, "memory, GB", lambda row: None if row.gpu_memory_bytes is None else row.gpu_memory_bytes / 1e9
        ),
    )


def _add_events(page: Page, run: RunData) -> None:
    told = [(event.iteration, f"rank {event.rank}", event.event, event.message) for event in run.events]
    told += [(split.iteration, "all", "split", split_message(split)) for split in run.splits]
    told += [(change.border, "all", "members", change_message(change)) for change in run.changes.all]
    told.sort(key=lambda row: row[0])
    shown = told[-_EVENTS:]
    note = f"The newest {len(shown)} of {len(told)}." if len(shown) < len(told) else ""
    if shown:
        rows = [[str(iteration), *rest] for iteration, *rest in shown]
        page.table(
            "Events", PageTable((run.iteration_name, "worker", "event", "message"), rows, frozenset({1, 2, 3})), note
        )
