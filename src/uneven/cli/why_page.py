"""The text of ``uneven why``."""

import math
from collections.abc import Sequence
from statistics import median

from uneven.journal.report.page import PageTable
from uneven.why.pure.findings import CAUSES, EVERY_WORKER, PAUSES, Explanation, Pause, Remedy, Suspect, WorkerTimes


def as_text(found: Explanation) -> str:
    """Return the explanation as lines for a terminal."""
    return "\n\n".join("\n".join(_lines(one)) if isinstance(one, PageTable) else one for one in blocks(found))


def blocks(found: Explanation) -> list[str | PageTable]:
    """Return the explanation as paragraphs and tables, which a terminal and a page show."""
    still = [found.still] if found.still else []
    if not found.steps:
        return [f"uneven why: {found.note}.", *still]
    made: list[str | PageTable] = [
        f"uneven why: {found.run}, {len(found.workers)} workers, {found.steps} steps of {_ms(found.step_s)}"
    ]
    made += still
    lines = []
    for one in found.suspects:
        lines += [_sentence(one, found), f"  cause   {CAUSES[one.cause]}: {one.evidence}"]
    lines += [f"  else    {text}" for text in _excluded(found)] if found.suspects else []
    made.append("\n".join(lines or [f"No worker is late enough to be named. {found.bound}"]))
    made.append(_worker_table(found.workers))
    if pauses := [_pause(one) for one in found.pauses if one.part >= 0.005]:
        made.append("\n".join(pauses))
    if found.remedies:
        made.append(_remedy_table(found.remedies))
    if found.note:
        made.append(f"Note: {found.note}.")
    return made


def _lines(table: PageTable) -> list[str]:
    """Return a table for a terminal."""
    rows = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if place in table.text else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _sentence(one: Suspect, found: Explanation) -> str:
    others = [worker for worker in found.workers if worker.rank != one.rank]
    mine = next(worker for worker in found.workers if worker.rank == one.rank)
    if one.cause == "link":
        return f"rank {one.rank} ({one.host}) has a slow link: an exchange takes {_ms(mine.communicate_s)} of a step."
    own_s, wait_s = median(worker.own_s for worker in others), median(worker.wait_s for worker in others)
    return (
        f"rank {one.rank} ({one.host}) is slow: its own work takes {_ms(mine.own_s)} of a step; the others take "
        f"{_ms(own_s)} and wait {_ms(wait_s)} ({wait_s / found.step_s:.0%}) for it."
    )


def _excluded(found: Explanation) -> list[str]:
    causes = {one.cause for one in found.suspects}
    texts = []
    data_s = median(one.data_s for one in found.workers)
    exchange_s = median(one.communicate_s for one in found.workers)
    if "data" not in causes and data_s < 0.1 * found.step_s:
        texts.append(f"data takes {_ms(data_s)} of a step: it is not the problem")
    if "link" not in causes and exchange_s < 0.15 * found.step_s:
        texts.append(f"communication takes {_ms(exchange_s)} of a step: links are not the problem")
    return texts


def _pause(one: Pause) -> str:
    whose = "all workers" if one.rank == EVERY_WORKER else f"rank {one.rank}"
    cause = f" ({PAUSES[one.cause]})" if one.cause else ""
    steps = "1 long step" if one.steps == 1 else f"{one.steps} long steps"
    return f"Now and then: {steps} of {whose}{cause} took {one.part:.1%} of the time."


def _worker_table(workers: Sequence[WorkerTimes]) -> PageTable:
    columns = ("rank", "machine", "own work", "of it data", "waits", "transfer")
    rows = [
        (str(one.rank), one.host, *map(_ms, (one.own_s, one.data_s, one.wait_s, one.communicate_s))) for one in workers
    ]
    return PageTable(columns, rows, text=frozenset({1}))


def _remedy_table(remedies: Sequence[Remedy]) -> PageTable:
    rows = []
    for one in remedies:
        span = f" ({one.least:.1f} to {one.most:.1f})" if one.most - one.least >= 0.1 else ""
        rows.append((one.words, f"{one.gain:.1f} ×{span}", one.command))
    return PageTable(("what would help", "expected", ""), rows, text=frozenset({0, 1, 2}))


def _ms(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
