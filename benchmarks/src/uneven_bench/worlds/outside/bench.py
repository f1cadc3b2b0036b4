"""``uneven bench worlds --case outside``: every source, its errors, and the orders that follow from them."""

import os
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

from uneven.cluster.pure.plan import ranked
from uneven_bench.harness.show import Progress
from uneven_bench.worlds.outside import sources
from uneven_bench.worlds.outside.play import SourcePoint, summary

_APART = 0.05  # measured times that differ by less are not ordered


def run(progress: Progress) -> dict[str, Any]:
    """Play all sources that ``UNEVEN_DATA`` has; the others are in ``left_out``."""
    began_s = perf_counter()
    root = Path(os.environ["UNEVEN_DATA"]) / "truth" if "UNEVEN_DATA" in os.environ else None
    found: dict[str, list[SourcePoint]] = {}
    more: dict[str, Any] = {}
    left: list[str] = []
    calibrated: list[str] = []

    def diloco(folder: Path) -> None:
        points, rows, said = sources.diloco(folder)
        found.update(points)
        calibrated.append(said)
        more.update(ordered(rows), price_error=price_error(rows), **fastest_first(folder, rows))

    def pollux(folder: Path) -> None:
        points, said = sources.pollux(folder)
        found.update(points)
        calibrated.append(said)

    def keep(name: str, played: Callable[[Path], Iterable[SourcePoint]]) -> Callable[[Path], None]:
        return lambda folder: found.update({name: list(played(folder))})

    plays: tuple[tuple[str, Callable[[Path], None]], ...] = (
        ("diloco_measured", diloco),
        ("pollux", pollux),
        ("tensorflow_k80", keep("tensorflow", sources.tensorflow)),
        ("horovod", keep("horovod", sources.horovod)),
    )
    for place, (name, play) in enumerate(plays):
        progress("simulated", name, place / len(plays))
        if root is not None and (root / name / "points.csv").is_file():
            play(root / name)
        else:
            left.append(name)
    found["onebit_ethernet"] = list(sources.onebit(sources.ONEBIT_ETHERNET, 4, 40e9, achieved=4.1 / 40))
    found["onebit_infiniband"] = list(sources.onebit(sources.ONEBIT_INFINIBAND, 8, 100e9, network="infiniband"))
    progress("simulated", "outside", 1.0)
    errors = {name: summary(points) for name, points in found.items()}
    return {
        "outside": {name: one._asdict() for name, one in errors.items()},
        "median_error": {name: one.median_error for name, one in errors.items()},
        "worst_error": {name: one.worst_error for name, one in errors.items()},
        **more,
        "calibrated": calibrated,
        "left_out": left,
        "seconds": perf_counter() - began_s,
    }


def ordered(rows: list[dict[str, str]]) -> dict[str, int]:
    """Return ``pairs`` of kinds of runs at one bandwidth that measured more than 5 % apart, and how many of them the
    simulator orders alike (``pairs_ordered``)."""
    pairs = right = 0
    for bandwidth in sources.SHAPED:
        runs: dict[tuple[str, str], list[dict[str, str]]] = {}
        for row in rows:
            if row["bandwidth"] == bandwidth:
                runs.setdefault((row["algorithm"], row["every"]), []).append(row)
        times = [
            (sum(float(row["measured_ms"]) for row in group) / len(group), float(group[0]["simulated_s"]))
            for group in runs.values()
        ]
        for (one, one_simulated), (other, other_simulated) in combinations(times, 2):
            if abs(one - other) > _APART * min(one, other):
                pairs += 1
                right += (one < other) == (one_simulated < other_simulated) and one_simulated != other_simulated
    return {"pairs": pairs, "pairs_ordered": right}


def fastest_first(folder: Path, rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return at how many bandwidths ``uneven plan``, with its own policies, has the fastest measured policy first of
    those that were measured; and the policy that it recommends at each bandwidth."""
    right, today = 0, {}
    for bandwidth in sources.SHAPED:
        here = [row for row in rows if row["bandwidth"] == bandwidth]
        if not here:
            continue
        plan = ranked(sources.planned(folder, bandwidth))
        fastest = min(here, key=lambda row: float(row["measured_ms"]))
        first = next(row.result.choice.sync for row in plan.rows if row.result.choice.sync in sources.FAMILIES)
        right += fastest["algorithm"] in sources.FAMILIES[first] and int(fastest["every"]) > 1
        today[bandwidth] = "" if plan.best_carried is None else plan.best_carried.result.choice.sync
    return {"fastest_first": right, "today": today}


def price_error(rows: list[dict[str, str]]) -> float:
    """Return the simulated price of all steps of diloco-measured relative to the measured one, minus 1."""
    per_s = sources.PRICE_PER_HOUR / 3600
    measured = sum(sources.steps_of(row) * float(row["measured_ms"]) / 1e3 for row in rows) * per_s
    simulated = sum(sources.steps_of(row) * float(row["simulated_s"]) for row in rows) * per_s
    return simulated / measured - 1
