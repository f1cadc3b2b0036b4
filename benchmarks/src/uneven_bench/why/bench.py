"""``uneven bench why``: does it name the slow worker and the cause, is it silent otherwise, and what does it cost?

Every run is drawn from a seed: three real workers, joined by gloo, one of them disturbed or none.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from uneven.cluster.emulate.netns import EmulatedNetwork
from uneven.cluster.emulate.pure import names
from uneven.cluster.emulate.pure.wiring import Wiring
from uneven.cluster.pure.describe.spec import Node
from uneven.testing.ranks import run_ranks
from uneven.why.explain import explain
from uneven.why.pure.causes import Explanation
from uneven_bench.harness.show import Progress, table_of
from uneven_bench.why.body import overhead, train
from uneven_bench.why.cases import CAUSES, WORKERS, WhyCase, drawn

SEED = 6_117
WITH_CAUSE, EQUAL = 60, 40
FEW_WITH_CAUSE, FEW_EQUAL = 5, 2
_STEPS_S = {"5": 0.005, "50": 0.05}
_WITHIN_S = 180.0


def run(quick: bool, progress: Progress, seed: int | None = None, only: int | None = None) -> dict[str, Any]:
    """Play 60 runs with a cause and 40 without; with ``quick``, 5 and 2. ``only``: one run. Result: ``rank_right`` and
    ``cause_right`` (parts of the runs with a cause), ``silent_right`` (of the equal ones), ``runs`` (their numbers),
    ``overhead`` (step in ms → ratio with its middle half), ``wrong``."""
    seed = SEED if seed is None else seed
    cases = drawn(seed, *((FEW_WITH_CAUSE, FEW_EQUAL) if quick else (WITH_CAUSE, EQUAL)))
    if only is not None:
        cases = [one for one in cases if one.number == only]
    ends = []
    for number, case in enumerate(cases):
        progress("runs", case.words, number / len(cases))
        ends.append((case, _played(case)))
    caused = [(case, found) for case, found in ends if case.rank >= 0]
    equal = [(case, found) for case, found in ends if case.rank < 0]
    costs = {}
    for name, step_s in _STEPS_S.items() if only is None else ():
        progress("overhead", f"steps of {name} ms", 0.0)
        costs[name] = _overhead(step_s, blocks=6 if quick else 40)
    return {
        "seed": seed,
        "runs": {"cause": len(caused), "equal": len(equal)},
        "rank_right": _part([_rank_right(*one) for one in caused]),
        "cause_right": _part([_cause_right(*one) for one in caused]),
        "silent_right": _part([not found.suspects for _, found in equal]),
        "overhead": costs,
        "wrong": [
            {"number": case.number, "case": case.words, "said": _said(found)}
            for case, found in ends
            if not (_cause_right(case, found) if case.rank >= 0 else not found.suspects)
        ],
    }


def _played(case: WhyCase) -> Explanation:
    folder = tempfile.mkdtemp(prefix="uneven-bench-why-")
    try:
        with _networks(case) as networks:
            linked = bool(networks)
            run_ranks(
                WORKERS, train, asdict(case), folder, networks, timeout_s=_WITHIN_S, join=not linked, fresh=linked
            )
        return explain(Path(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _networks(case: WhyCase) -> Iterator[list[list[str]]]:
    """Make a network namespace for each worker, if a link is limited."""
    if case.disturbance != "link":
        yield []
        return
    wiring = Wiring([Node(name=f"worker{rank}") for rank in range(WORKERS)])
    network = EmulatedNetwork(wiring, netem=False)
    try:
        bit_per_s = (120 - 80 * case.severity) * 1e6
        for device in (wiring.up(case.rank), wiring.down(case.rank)):
            network.limit(device, bit_per_s)
        files = [f"/proc/{os.getpid()}/fd/{network.namespace(wiring.node(rank))}" for rank in range(WORKERS)]
        yield [[file, names.address(0)] for file in files]
    finally:
        network.close()


def _rank_right(case: WhyCase, found: Explanation) -> bool:
    if CAUSES[case.disturbance] == ("pause",):
        return bool(found.pauses) and found.pauses[0].rank == case.rank and not found.suspects
    return bool(found.suspects) and {one.rank for one in found.suspects} == {case.rank}


def _cause_right(case: WhyCase, found: Explanation) -> bool:
    if not _rank_right(case, found):
        return False
    return CAUSES[case.disturbance] == ("pause",) or found.suspects[0].cause in CAUSES[case.disturbance]


def _said(found: Explanation) -> str:
    named = [f"rank {one.rank}: {one.cause} ({one.evidence})" for one in found.suspects]
    return "; ".join(named) or f"nothing ({found.note or found.bound})"


def _part(right: list[bool]) -> float | None:
    return round(sum(right) / len(right), 3) if right else None


def _overhead(step_s: float, blocks: int) -> dict[str, float]:
    """Return the ratio of a step with the measurement to one without, paired within a job."""
    ratios = sorted(run_ranks(2, overhead, step_s, blocks, timeout_s=600.0)[0])
    quarter = len(ratios) // 4
    return {
        "ratio": round(median(ratios), 4),
        "least": round(ratios[quarter], 4),
        "most": round(ratios[len(ratios) - 1 - quarter], 4),
    }


def tables(result: dict[str, Any]) -> list[Table]:
    counts = result["runs"]
    rows = [
        ("right rank", f"{counts['cause']} runs", _percent(result["rank_right"]), "≥ 95 %"),
        ("right cause", f"{counts['cause']} runs", _percent(result["cause_right"]), "≥ 90 %"),
        ("silent", f"{counts['equal']} equal runs", _percent(result["silent_right"]), "≥ 95 %"),
    ]
    for name, one in result["overhead"].items():
        bar = "≤ 1.01" if name == "50" else "≤ 1.02"
        rows.append(
            (f"step of {name} ms", "with ÷ without", f"{one['ratio']:.3f} [{one['least']:.3f}, {one['most']:.3f}]", bar)
        )
    wrong = [(f"--only {one['number']}", one["case"], one["said"]) for one in result["wrong"]]
    made = [table_of(f"uneven why, seed {result['seed']}", ("", "of", "measured", "bar"), rows)]
    return [*made, table_of("Wrong", ("replay", "case", "answer"), wrong, show_lines=True)] if wrong else made


def _percent(part: float | None) -> str:
    return "" if part is None else f"{part:.0%}"
