"""``uneven bench far-sites``: sites on slow lines, and sites with unlike data.

Learning at equal time and at equal bytes runs in virtual time with real gradients, as do skewed labels and the tuner;
times of real runs are measured on emulated lines, as root.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uneven.cluster.emulate.capabilities import why_no_bandwidth, why_not_isolated
from uneven.cluster.series import DATA_VARIABLE
from uneven.errors import ConfigError
from uneven_bench.far_sites import filters, learning, lines, skewed
from uneven_bench.far_sites.cases import (
    BSP,
    QUICK_SCOUT_SKEWS,
    QUICK_SKEWS,
    SCOUT_SKEWS,
    SKEWED,
    SKEWS,
    TWO_MINUTES,
    LearningCase,
    emulated,
)
from uneven_bench.far_sites.cases import learning as learning_cases
from uneven_bench.harness.show import Progress, chosen

CASES = (
    *("filter", "learning", "muloco", "cifar10", "text", "adapters"),
    *("20mbit", "100mbit", "three_sites", "skew", "scout"),
)
TOLERANCE = 0.05


def run(quick: bool, data: str, progress: Progress, *, case: str | None = None) -> dict[str, Any]:
    """All cases, or one. ``data``: digits or fashion-mnist, in addition to CIFAR-10 and text; ``case``: one of
    ``CASES``. Returns the object that ``--json`` prints; ``docs/measurements/far-sites.md`` explains every key. Raises
    UnknownNameError: no such case. ConfigError: this machine cannot play the case. DataError: its data are not on this
    machine. LaunchError: a worker died."""
    wanted = chosen(case, CASES)
    found: dict[str, Any] = {"left_out": {}}
    if "filter" in wanted:
        progress("filter", "ten million entries", 0.0)
        found["filter_10m_ms"] = filters.median(3 if quick else 9)
    found["virtual"] = {
        name: learning.play(one, progress) for name, one in _learning(quick, data, wanted, found["left_out"]).items()
    }
    if case == "adapters":
        found["adapters"] = _adapters(quick, progress)
    elif case is None:
        found["left_out"]["adapters"] = "it takes PEFT and half an hour: ask for it by --case"
    found["emulated"] = _emulated(quick, data, wanted, progress, found["left_out"], asked=case is not None)
    samples = 4_000 if quick else 10_000
    if "skew" in wanted:
        runs = skewed.SkewedRuns(samples=samples, steps=80 if quick else 300)
        names = (BSP, "gaia 20%", "fedavg 20") if quick else tuple(SKEWED)
        found["accuracy"] = skewed.accuracies(runs, QUICK_SKEWS if quick else SKEWS, names, progress)
    if "scout" in wanted:
        runs = skewed.SkewedRuns(samples=samples, steps=80 if quick else 600)
        period, skews = (10, QUICK_SCOUT_SKEWS) if quick else (50, SCOUT_SKEWS)
        found["scout"] = skewed.scouted(runs, progress, period=period, tolerance=TOLERANCE, seeds=1, skews=skews)
    return found | compared(found)


def _learning(quick: bool, data: str, wanted: tuple[str, ...], left_out: dict[str, str]) -> Mapping[str, LearningCase]:
    found = {}
    for name, one in learning_cases(quick, data).items():
        if ("learning" if name == data else name) not in wanted:
            continue
        if name == "text" and not os.environ.get(DATA_VARIABLE):
            left_out[name] = f"{DATA_VARIABLE} is not set"
            continue
        found[name] = one
    return found


def _adapters(quick: bool, told: Progress) -> dict[str, Any]:
    try:
        from uneven_bench.far_sites import adapters
    except ImportError as error:
        raise ConfigError(f"bench far-sites --case adapters: {error}: pip install '.[peft]'") from error
    return adapters.play(quick, told)


def _emulated(
    quick: bool, data: str, wanted: tuple[str, ...], told: Progress, left_out: dict[str, str], *, asked: bool
) -> dict[str, Any]:
    known = {name: one for name, one in emulated(quick).items() if name in wanted}
    why = (why_not_isolated() or why_no_bandwidth()) if known else ""
    if quick and not asked:
        why = TWO_MINUTES
    if why and asked:
        raise ConfigError(f"bench far-sites limits lines between sites, which cannot be done here: {why}")
    if why:
        left_out.update(dict.fromkeys(known, why))
        return {}
    with tempfile.TemporaryDirectory(prefix="uneven-far-sites-") as folder:
        return {name: lines.play(one, data, Path(folder) / name, told) for name, one in known.items()}


def compared(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``time_to_loss_vs_bsp`` and ``final_loss_vs_bsp``: case → policy → figure."""
    worlds = {f"{task}, {name}": one for task, each in found["virtual"].items() for name, one in each.items()}
    worlds |= found["emulated"]

    def of(key: str) -> dict[str, dict[str, Any]]:
        return {name: {who: row[key] for who, row in one["policies"].items()} for name, one in worlds.items()}

    return {"time_to_loss_vs_bsp": of("times_sooner"), "final_loss_vs_bsp": of("final_loss_vs_bsp")}
