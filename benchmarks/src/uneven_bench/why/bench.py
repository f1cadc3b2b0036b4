"""``uneven bench why``: does it name the slow worker and the cause, is it silent otherwise, and what does it cost?

Every run is drawn from a seed: three real workers, joined by gloo, one of them disturbed or none. Each remedy is really
done, on machines drawn from the same seed.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from uneven.cluster.emulate.capabilities import why_no_bandwidth, why_not_isolated
from uneven.errors import UnknownNameError
from uneven.testing.ranks import run_ranks
from uneven.why.explanation import explain
from uneven.why.pure.findings import Explanation
from uneven_bench.elastic.machines import Machines
from uneven_bench.harness.faulty import numbers_of
from uneven_bench.harness.figures import Spread
from uneven_bench.harness.show import Progress
from uneven_bench.harness.tables import tables as harness_tables
from uneven_bench.why import remedies, rivals
from uneven_bench.why.body import overhead, train
from uneven_bench.why.cases import CAUSES, PAUSES, WORKERS, WhyCase, drawn

SEED = 6_117
WITH_CAUSE, EQUAL = 60, 40
FEW_WITH_CAUSE, FEW_EQUAL = 2, 1
_STEPS_S = {"5": 0.005, "50": 0.05}
_PAIRS, _FEW_PAIRS = 40, 3
_WORLDS, _WORLD_STEPS = 6, 100
_FEW_WORLDS, _FEW_WORLD_STEPS = 1, 16
_WITHIN_S = 180.0
_BUSY = "while True: pass"
BARS = {
    "rank_right": "≥ 95 %",
    "cause_right": "≥ 90 %",
    "silent_right": "≥ 95 %",
    "ratio": "≤ 1.02, at 50 ms 1.01",
    "median": "≤ 5 %, of remedies 15 %",
}
tables = partial(harness_tables, bars=BARS)


def run(
    quick: bool, progress: Progress, seed: int | None = None, only: str | None = None, case: str | None = None
) -> dict[str, Any]:
    """Play the drawn runs, or with the case "rivals" other tools. Raises UnknownNameError: there is no such case."""
    if case not in (None, "rivals"):
        raise UnknownNameError("case", case, ["rivals"])
    play = rivals.run if case else _run
    return play(quick, progress, SEED if seed is None else seed, only)


def _run(quick: bool, progress: Progress, seed: int, only: str | None) -> dict[str, Any]:
    """Play 60 runs with a cause and 40 without; with ``quick``, 2 and 1. ``only``: one run, or "K-L".

    Result: ``rank_right`` and ``cause_right`` (parts of the runs with a cause), ``silent_right`` (of the equal ones),
    ``runs`` (their numbers), ``overhead`` (step in ms → ratio of processor time, and of wall time, with the middle
    halves), ``as_it_was_error`` and ``remedy_error`` (median and worst, without sign; with root),
    ``worlds``, ``wrong``.
    """
    cases = drawn(seed, *((FEW_WITH_CAUSE, FEW_EQUAL) if quick else (WITH_CAUSE, EQUAL)))
    if only is not None:
        cases = [one for one in cases if one.number in numbers_of(only)]
    ends = []
    for number, case in enumerate(cases):
        progress("runs", case.words, number / len(cases))
        ends.append((case, _played(case)))
    caused = [(case, found) for case, found in ends if case.rank >= 0]
    equal = [(case, found) for case, found in ends if case.rank < 0]
    costs = {}
    for name, step_s in _STEPS_S.items() if only is None else ():
        progress("overhead", f"steps of {name} ms", 0.0)
        costs[name] = _overhead(step_s, _FEW_PAIRS if quick else _PAIRS)
    worlds = _remedies(seed, quick, progress) if only is None else []
    return {
        "seed": seed,
        "runs": {"cause": len(caused), "equal": len(equal), "worlds": len(worlds)},
        "rank_right": _part([_rank_right(*one) for one in caused]),
        "cause_right": _part([_cause_right(*one) for one in caused]),
        "silent_right": _part([not found.suspects for _, found in equal]),
        "overhead": costs,
        "as_it_was_error": _errors([one["as_it_was"] for one in worlds]),
        "remedy_error": _errors([each for one in worlds for each in one["remedies"].values()]),
        "worlds": worlds,
        "wrong": [
            {"number": case.number, "case": case.words, "answer": _said(found)}
            for case, found in ends
            if not (_cause_right(case, found) if case.rank >= 0 else not found.suspects)
        ],
    }


def _remedies(seed: int, quick: bool, progress: Progress) -> list[dict[str, Any]]:
    """Return the remedies of each drawn world, expected and measured; none if this machine cannot isolate workers."""
    if why := why_not_isolated() or why_no_bandwidth():
        progress("remedies", f"left out: {why}", 1.0)
        return []
    worlds = remedies.drawn(seed, *((_FEW_WORLDS, _FEW_WORLD_STEPS) if quick else (_WORLDS, _WORLD_STEPS)))
    made = []
    for world in worlds:
        with tempfile.TemporaryDirectory(prefix="uneven-bench-why-") as folder:
            made.append(remedies.compared(world, Path(folder) / "world", seed, progress))
    return made


def _errors(compared: list[dict[str, float]]) -> dict[str, float] | None:
    errors = [abs(one["error"]) for one in compared]
    return {"median": round(median(errors), 3), "worst": max(errors)} if errors else None


def _played(case: WhyCase) -> Explanation:
    with tempfile.TemporaryDirectory(prefix="uneven-bench-why-", ignore_cleanup_errors=True) as folder:
        with _networks(case) as networks, _busy(case):
            alone = not networks
            run_ranks(WORKERS, train, asdict(case), folder, networks, timeout_s=_WITHIN_S, join=alone, fresh=not alone)
        return explain(Path(folder), remedies=False)


@contextmanager
def _busy(case: WhyCase) -> Iterator[None]:
    """Run one, two or three busy loops next to the workers if the machine is to be busy."""
    count = 1 + int(3 * case.severity) if case.disturbance == "busy" else 0
    loops = [subprocess.Popen([sys.executable, "-S", "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


@contextmanager
def _networks(case: WhyCase) -> Iterator[list[list[str]]]:
    """Make a network namespace for each worker, if a link is limited."""
    if case.disturbance != "link":
        yield []
        return
    with closing(Machines(WORKERS)) as machines:
        machines.limit(case.rank, (120 - 80 * case.severity) * 1e6)
        yield [[machines.namespace(rank), machines.address(0)] for rank in range(WORKERS)]


def _rank_right(case: WhyCase, found: Explanation) -> bool:
    if case.disturbance in PAUSES:
        return bool(found.pauses) and found.pauses[0].rank == case.rank and not found.suspects
    return bool(found.suspects) and {one.rank for one in found.suspects} == {case.rank}


def _cause_right(case: WhyCase, found: Explanation) -> bool:
    if not _rank_right(case, found):
        return False
    cause = found.pauses[0].cause if case.disturbance in PAUSES else found.suspects[0].cause
    return cause in CAUSES[case.disturbance]


def _said(found: Explanation) -> str:
    named = [f"rank {one.rank}: {one.cause} ({one.evidence})" for one in found.suspects]
    named += [f"{one.steps} pauses of rank {one.rank}: {one.cause or 'unknown'}" for one in found.pauses]
    return "; ".join(named) or f"nothing ({found.note or found.bound})"


def _part(right: list[bool]) -> float | None:
    return round(sum(right) / len(right), 3) if right else None


def _overhead(step_s: float, pairs: int) -> dict[str, float]:
    """Return the ratios of a step with the measurement to one without, paired within a job."""
    measured = [pair for one in run_ranks(2, overhead, step_s, pairs, timeout_s=600.0) for pair in one]
    spreads = [Spread.of(each) for each in zip(*measured, strict=True)]
    keys = ("ratio", "least", "most", "wall", "wall_least", "wall_most")
    figures = [round(one, 4) for each in spreads for one in (each.median, each.low, each.high)]
    return {"pairs": pairs, **dict(zip(keys, figures, strict=True))}
