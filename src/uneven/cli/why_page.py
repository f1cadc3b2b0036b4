"""The text and the JSON of ``uneven why``, and the simulation of its remedies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from uneven.cli.what_if_page import what_if
from uneven.errors import ConfigError
from uneven.why.pure.causes import CAUSES, Explanation, Remedy, Suspect, WorkerTimes

_SEEDS = range(3)
_WORTH = 1.03  # smaller gains are not listed


def with_remedies(run: Path, found: Explanation) -> Explanation:
    """Return the explanation with the gain of each remedy; a note says why there are none."""
    if not found.suspects:
        return found
    changes = _changes(found)
    gains: dict[str, list[float]] = {text: [] for text, _, _ in changes}
    note = found.note
    for seed in _SEEDS:
        try:
            simulated = what_if(run, [text for text, _, _ in changes], seed)
        except ConfigError as error:
            return replace(found, note=f"no remedy was simulated: {error}")
        for one in simulated.played[1:]:
            gains[one.words].append(simulated.gain(one))
    remedies = [
        Remedy(words=words, gain=median(gains[text]), least=min(gains[text]), most=max(gains[text]), command=command)
        for text, words, command in changes
        if median(gains[text]) >= _WORTH
    ]
    return replace(found, remedies=tuple(sorted(remedies, key=lambda one: -one.gain)), note=note)


def _changes(found: Explanation) -> list[tuple[str, str, str]]:
    """Return what-if text, words and command of each remedy that can apply."""
    first = found.suspects[0]
    if first.cause == "link":
        return [("with local:every=8", "averaging every 8 steps instead of each", "--sync local:every=8")]
    others = [one for one in found.workers if one.rank not in {suspect.rank for suspect in found.suspects}]
    middle = sorted(others or found.workers, key=lambda one: one.own_s)[len(others or found.workers) // 2]
    made = [(f"rank {first.rank} as fast as rank {middle.rank}", f"rank {first.rank} as fast as the others", "")]
    if len(found.workers) > 2:
        made.append((f"without rank {first.rank}", f"leaving rank {first.rank} out", ""))
    if first.cause != "batch":
        made.append(("with lb-bsp", "unequal shares (three lines: uneven.Session)", "uneven run train.py"))
    made.append(("with local:every=8", "averaging every 8 steps instead of each", "--sync local:every=8"))
    return made


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
            lines.append(
                f"Now and then: {pause.steps} long steps of rank {pause.rank} took {pause.part:.1%} of the time."
            )
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
