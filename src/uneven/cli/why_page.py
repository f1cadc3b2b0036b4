"""The text of ``uneven why``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from uneven.why.pure.causes import CAUSES, EVERY_WORKER, PAUSES, Explanation, Suspect, WorkerTimes


def as_text(found: Explanation) -> str:
    """Return the explanation as lines for a terminal."""
    if not found.steps:
        return f"uneven why: {found.note}."
    lines = [f"uneven why: {found.run}, {len(found.workers)} workers, {found.steps} steps of {_ms(found.step_s)}", ""]
    lines += [_sentence(one, found) for one in found.suspects] or [
        "No worker is slower than the others. " + found.bound
    ]
    for one in found.suspects:
        lines += [f"  cause   {CAUSES[one.cause]}: {one.evidence}"]
    if found.suspects:
        lines += [f"  else    {text}" for text in _excluded(found)]
    lines += ["", *_table(found.workers)]
    for pause in found.pauses:
        if pause.part >= 0.005:
            whose = "all workers" if pause.rank == EVERY_WORKER else f"rank {pause.rank}"
            why = f" ({PAUSES[pause.cause]})" if pause.cause else ""
            lines.append(f"Now and then: {pause.steps} long steps of {whose}{why} took {pause.part:.1%} of the time.")
    if found.remedies:
        width = max(len(one.words) for one in found.remedies) + 2
        lines += ["", f"{'what would help':<{width}} expected"]
        for remedy in found.remedies:
            span = f"{remedy.least:.1f} to {remedy.most:.1f}" if remedy.most - remedy.least >= 0.1 else ""
            lines.append(f"  {remedy.words:<{width}}{remedy.gain:.1f} ×  {span:<11} {remedy.command}".rstrip())
    if found.note:
        lines += ["", f"Note: {found.note}."]
    return "\n".join(lines)


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


def _table(workers: Sequence[WorkerTimes]) -> list[str]:
    hosts = max(len("machine"), *(len(one.host) for one in workers))
    lines = [f"rank  {'machine':<{hosts}}  {'own work':>9} {'of it data':>11} {'waits':>9} {'transfer':>9}"]
    for one in workers:
        lines.append(
            f"{one.rank:>4}  {one.host:<{hosts}}  {_ms(one.own_s):>9} {_ms(one.data_s):>11} {_ms(one.wait_s):>9} "
            f"{_ms(one.communicate_s):>9}"
        )
    return lines


def _ms(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
