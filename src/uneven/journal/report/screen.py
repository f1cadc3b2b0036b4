"""The terminal view of a state, as Rich renderables."""

import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from uneven.journal.pure.member_changes import MemberChange
from uneven.journal.pure.metrics import NAN
from uneven.journal.pure.summary import Summary, WorkerSummary
from uneven.journal.report.pure.advice import advice
from uneven.journal.report.pure.chart_series import iteration_name
from uneven.journal.report.pure.live_state import RunProgress
from uneven.journal.report.pure.text import count, parts_of, percent, seconds, size, span
from uneven.policy.core.records import EventRecord, MembershipRecord, SplitRecord

# Distinct in shape and colour, for terminals without colours and colour-blind users.
PARTS = (("compute", "█", "green"), ("data", "▓", "yellow"), ("communicate", "▒", "blue"), ("wait", "░", "red"))
_EVENT_STYLES = {"split": "cyan", "bad-report": "yellow", "members": "magenta", "left": "magenta"}
_HEADER_ROWS, _EVENT_ROWS = 9, 5
_LINES = 4  # connections shown
_TOLD = 8  # most workers named in one line


def live(state: RunProgress, name: str, width: int, height: int) -> RenderableType:
    """Return the view of a running run for a terminal of this size, in columns and rows."""
    if state.last is None:
        return Text(f"{name}: waiting for the first {state.iteration_name}", style="dim")
    now = state.now()
    said = _said(state)
    rows = max(3, height - _HEADER_ROWS - _EVENT_ROWS - len(said))
    parts = (_title(state, name, width), _progress(state, width), _speed(now), *said)
    return Group(*parts, _workers(state, now, width, rows), _legend(), *_events(state, width, _EVENT_ROWS))


def final(state: RunProgress, name: str, width: int) -> RenderableType:
    """Return the table after the run."""
    if state.last is None:
        return Text(f"{name}: no iteration was finished by all workers")
    total = state.total()
    return Group(
        _title(state, name, width),
        _progress(state, width),
        *_said(state),
        _workers(state, total, width, len(total.workers)),
        _legend(),
        Text(),
        _summary(total),
        *_events(state, width, _EVENT_ROWS),
        *_advice(state, total),
    )


def _said(state: RunProgress) -> list[Text]:
    parts = (_passes, _members, _exchanged, _threads, _scalars, _refreshes, _messages)
    return [line for part in parts for line in part(state)]


def _advice(state: RunProgress, total: Summary) -> list[Text]:
    said = advice(total, state.runs[0].settings if 0 in state.runs else {})
    return [Text(), Text(f"Advice: {said}.")] if said else []


def _title(state: RunProgress, name: str, width: int) -> Text:
    run = state.runs.get(0)
    settings = run.settings if run else {}
    said = [f"{key} {settings[key]}" for key in ("balance", "sync") if key in settings]
    if run and run.world != "real":
        said.insert(0, run.world)
    text = Text.assemble((name, "bold"), ("".join(f"  ·  {part}" for part in said), "dim"))
    text.truncate(width, overflow="ellipsis")
    return text


def _progress(state: RunProgress, width: int) -> Text:
    assert state.last is not None
    done = state.last.iteration + 1
    epoch = f"epoch {state.last.epoch + 1}"
    if state.planned is None or state.ended:
        return Text(f"{'ended after ' if state.ended else ''}{state.iteration_name} {done}, {epoch}")
    left_s = state.time_left_s()
    after = f"  {percent(done / state.planned)}  {span(left_s)} left"
    before = f"{state.iteration_name} {done}/{state.planned}, {epoch}  "
    room = max(8, min(60, width - len(before) - len(after)))
    full = min(room, round(room * done / state.planned))
    return Text.assemble(before, ("━" * full, "green"), ("─" * (room - full), "dim"), after)


def _speed(now: Summary) -> Text:
    parts = (
        (count(now.samples_per_s), " samples/s"),
        (seconds(now.iteration_s), f" per {iteration_name(now.apart)}"),
        (percent(now.wait_share), " waiting"),
        *([(percent(now.communicate_share), " communicating")] if now.apart else []),
        (percent(now.fraction_of_limit), " of the limit"),
    )
    return _dotted(parts)


def _dotted(parts: Iterable[tuple[str, str]]) -> Text:
    texts = (Text.assemble((value, "bold"), what) for value, what in parts)
    return Text("  ·  ", style="dim").join(texts)


def _passes(state: RunProgress) -> list[Text]:
    last = state.last
    several = {} if last is None else {rank: one.passes for rank, one in last.timings.items() if one.passes > 1}
    if not several:
        return []
    each = ", ".join(f"{count} on rank {rank}" for rank, count in list(several.items())[:_TOLD])
    what = "a step" if state.apart else "an iteration"
    return [Text.assemble(f"passes in {what}: ", (each, "bold"), " …" * (len(several) > _TOLD))]


def _members(state: RunProgress) -> list[Text]:
    changes = state.changes.all
    if not changes:
        return []
    came, left = (sum(len(getattr(one, name)) for one in changes) for name in ("came", "left"))
    parts = (
        (str(len(changes[-1].members)), " workers"),
        (str(came), " joined"),
        (str(left), " left"),
        (seconds(max(one.pause_s for one in changes)), " longest pause"),
    )
    return [_dotted(parts)]


def _exchanged(state: RunProgress) -> list[Text]:
    one = state.exchanged
    if not one.count:
        return []
    parts = [(f"{one.count:,}", " exchanges"), (count(one.gap), " steps apart"), (size(one.sent_bytes), " sent")]
    if set(one.late) != {0}:
        parts.append((f"{one.staleness:.1f}", " steps stale"))
    if one.dropped:
        parts.append((f"{one.dropped:,}", " skipped"))
    return [_dotted(parts)]


def _threads(state: RunProgress) -> list[Text]:
    if not state.threads:
        return []
    least, most = min(state.threads.values()), max(state.threads.values())
    each = f"{least:,}" if least == most else f"{least:,}–{most:,}"
    return [Text.assemble((str(len(state.threads)), "bold"), " threads  ·  ", (each, "bold"), " steps each")]


def _scalars(state: RunProgress) -> list[Text]:
    if not state.scalars:
        return []
    texts = [Text.assemble(f"{one.name} ", (f"{one.value:.4g}", "bold")) for one in state.scalars.values()]
    return [Text("  ·  ", style="dim").join(texts)]


def _refreshes(state: RunProgress) -> list[Text]:
    found = []
    for part, ranks in sorted(state.refreshes.seconds.items()):
        newest = "  ".join(seconds(taken[-1]) for _, taken in sorted(ranks.items()))
        found.append(Text.assemble(f"{part} refreshed, by owner: ", (newest, "bold")))
    return found


def _messages(state: RunProgress) -> list[Text]:
    found = []
    # The rows are sorted by bytes sent.
    for line, exchanges, sent_bytes, waited_s, most_s in state.messages.rows()[:_LINES]:
        text = Text.assemble(f"{line}: ", (f"{exchanges:,}", "bold"), " exchanges  ·  ", (size(sent_bytes), "bold"))
        waits = "" if most_s == waited_s else f", {seconds(most_s)} at most"
        found.append(text.append(" sent  ·  waited ").append(seconds(waited_s), style="bold").append(waits))
    return found


def _workers(state: RunProgress, summary: Summary, width: int, rows: int) -> Table:
    shown = _most_telling(summary.workers, rows)
    wide = width >= 100
    bar = max(8, (width - (60 if wide else 52)) // 2) if wide else max(8, (width - 46) // 2)
    title = None
    if len(shown) < len(summary.workers):
        title = f"{len(shown)} of {len(summary.workers)} workers, those that wait least"
    table = Table(box=None, padding=(0, 1, 0, 0), title=title, title_style="dim", title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("host", max_width=16 if wide else 8, no_wrap=True, overflow="ellipsis")
    table.add_column("smp/s", justify="right", no_wrap=True)
    table.add_column("share", no_wrap=True)
    table.add_column("time", no_wrap=True)
    table.add_column("wait", justify="right", no_wrap=True)
    if wide:
        table.add_column("pred.err", justify="right", no_wrap=True)
    table.add_column("cores", justify="right", no_wrap=True)
    shares = state.shares()
    biggest = max(shares.values(), default=0) or 1
    for worker in shown:
        table.add_row(*_row(state, worker, shares.get(worker.rank, 0), biggest, bar, wide))
    return table


def _row(state: RunProgress, worker: WorkerSummary, batch: int, biggest: int, bar: int, wide: bool) -> list[str | Text]:
    run, load = state.runs.get(worker.rank), state.loads.get(worker.rank)
    room = max(1, bar - 6)
    share = Text.assemble(f"{batch:>5} ", ("■" * max(1 if batch else 0, round(room * batch / biggest)), "cyan"))
    if worker.rank in state.gone:
        share = Text(" gone", style="dim")
    row: list[str | Text] = [
        str(worker.rank),
        run.host if run else "?",
        count(worker.speed_per_s),
        share,
        stacked(worker, bar),
        percent(worker.wait_share),
    ]
    if wide:
        row.append(percent(worker.prediction_error))
    row.append(f"{load.process_cpu:.2f}" if load else "–")
    return row


def stacked(worker: WorkerSummary, width: int) -> Text:
    """Return the parts of a worker's time as a bar of exactly ``width`` cells."""
    text, start, total = Text(), 0, 0.0
    for name, cell, style in PARTS:
        part: float = getattr(worker, f"{name}_share")
        total += part if math.isfinite(part) else 0.0
        end = min(width, round(width * total))  # rounding the sums, not the parts, keeps the width exact
        text.append(cell * (end - start), style=style)
        start = end
    return text.append(" " * (width - start))


def _most_telling(workers: Sequence[WorkerSummary], rows: int) -> list[WorkerSummary]:
    if len(workers) <= rows:
        return list(workers)
    least = sorted(workers, key=lambda worker: worker.wait_share)[: rows - 1]  # stragglers wait least
    return sorted(least, key=lambda worker: worker.rank)


def _legend() -> Text:
    text = Text("time: ", style="dim")
    for name, cell, style in PARTS:
        text.append(cell, style=style).append(f" {name}  ", style="dim")
    return text


def _summary(total: Summary) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    spread = f"{seconds(total.iteration_low_s)} … {seconds(total.iteration_high_s)}"
    errors = [w.prediction_error for w in total.workers if math.isfinite(w.prediction_error)]
    error = sum(errors) / len(errors) if errors else NAN
    name = iteration_name(total.apart)
    several = "global batches" if total.apart else "iterations"
    rows = (
        (f"{several} measured", f"{total.iterations:,} ({total.samples:,} samples)"),
        *([("steps, by rank", _told(f"{w.steps:,}" for w in total.workers))] if total.apart else []),
        *([("time per step", _told(seconds(w.step_s) for w in total.workers))] if total.apart else []),
        (f"time per {name}", f"{seconds(total.iteration_s)} (middle half {spread})"),
        ("samples/s", count(total.samples_per_s)),
        ("waiting, communicating", f"{percent(total.wait_share)}, {percent(total.communicate_share)}"),
        ("loading, control", f"{percent(total.data_share)}, {percent(total.control_share)}"),
        ("prediction error", percent(error)),
        ("limit", f"{seconds(total.limit_s)}; reached {percent(total.fraction_of_limit)} of it"),
    )
    for what, value in rows:
        table.add_row(what, value)
    return table


def _told(values: Iterable[str]) -> str:
    first = list(itertools.islice(values, _TOLD + 1))
    return "  ".join(first[:_TOLD]) + ("  …" if len(first) > _TOLD else "")


def _events(state: RunProgress, width: int, rows: int) -> list[Text]:
    """Return the newest events that fit into ``rows`` rows without being cut."""
    newest: list[Text] = []
    for event in reversed(state.events):
        line = _event(event, width)
        rows -= 1 + line.plain.count("\n")
        if rows < 1 and newest:
            break
        newest.insert(0, line)
    return [Text(), *newest] if newest else []


def _event(event: EventRecord | SplitRecord | MembershipRecord, width: int) -> Text:
    match event:
        case SplitRecord():
            kind, message = "split", split_message(event)
        case MembershipRecord():
            kind, message = "members", change_message(event)
        case EventRecord():
            kind, message = event.event, f"rank {event.rank}: {event.message}"
    before = f"{event.iteration:>7} "
    indent = "\n" + " " * len(f"{before}{kind} ")
    lines = textwrap.wrap(message, max(20, width + 1 - len(indent)))
    return Text.assemble((before, "dim"), (kind, _EVENT_STYLES.get(kind, "bold red")), " ", indent.join(lines))


def split_message(split: SplitRecord) -> str:
    said = parts_of(split.shares)
    return f"{said} ({split.reason})" if split.reason else said


def change_message(change: MembershipRecord | MemberChange) -> str:
    return f"{change.why}; {len(change.members)} continue after {seconds(change.pause_s)}"
