"""The keys of ``uneven bench lb-bsp``, from its workers' measurements."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from uneven_bench.harness.figures import Spread
from uneven_bench.lb_bsp.cases import RIVALS, LbBspCase

TARGET = 0.98  # the share of DDP's best accuracy that counts as trained
Walls = dict[str, dict[int, float]]  # arm → round → seconds for X samples
ByNumber = Mapping[int, float]  # round or blocks trained → a figure


def walls(result: Mapping[str, Any]) -> Walls:
    """Return seconds per sample of every arm, by rank 0's clock between barriers; samples above X count too."""
    return {
        name: {int(number): block["wall_s"] / block["samples"] for number, block in ranks[0].items()}
        for name, ranks in result["blocks"].items()
    }


def ratios(above: ByNumber, below: ByNumber) -> list[float]:
    """Return the ratios of common rounds, in which both met the same machine."""
    return [above[number] / below[number] for number in above if number in below]


def wait_share(ranks: Sequence[Mapping[str, Mapping[str, Any]]]) -> float:
    """Return the share of all workers' time spent waiting; the last to arrive does not wait."""
    waited_s = total_s = 0.0
    for number in ranks[0]:
        same_block = [blocks[number] for blocks in ranks]
        for same_iteration in zip(*(block["exposed_s"] for block in same_block), strict=False):
            waited_s += sum(exposed - min(same_iteration) for exposed in same_iteration)
        total_s += sum(block["wall_s"] * len(block["exposed_s"]) for block in same_block)
    return waited_s / total_s


def of(above: ByNumber, below: ByNumber, case: LbBspCase, first: int = 0) -> float:
    """Return the excess time of one arm over another in common rounds from ``first`` on: the median of ratios if rounds
    are equal, as a hiccup hits one; the ratio of sums if shares change, as a late reaction must count."""
    same = [number for number in above if number in below and number >= first]
    if not same:
        return math.nan
    if case.changing:
        return sum(above[number] for number in same) / sum(below[number] for number in same)
    return statistics.median(above[number] / below[number] for number in same)


def summarize(case: LbBspCase, result: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize one case. Result: ``about``, ``workload``, ``methods`` (arm → figures), ``limit``, ``best_rival``,
    ``gain_over_best_rival``, ``target_accuracy``; ``docs/measurements/lb-bsp.md`` explains them."""
    found, limit = walls(result), case.limit
    target = target_accuracy(result["accuracy"].get("ddp", {}))
    # Accuracies can be compared only up to the shortest training that was measured.
    common = max(set.intersection(*(set(map(int, curve)) for curve in result["accuracy"].values())), default=0)
    methods: dict[str, dict[str, Any]] = {}
    for name, seconds in found.items():
        each = [*seconds.values()]
        middle = Spread.of(each)
        measured: dict[str, Any] = {
            "iteration_s": statistics.fmean(each) if case.changing else middle.median,
            "iteration_spread_s": middle.pair,
            "rounds": len(each),
            "wait_share": wait_share(result["blocks"][name]),
            "of_limit": of(found[limit], seconds, case),
            "of_limit_spread": Spread.of(ratios(found[limit], seconds)).pair,
            "samples": statistics.fmean(block["samples"] for block in result["blocks"][name][0].values()),
        }
        if case.change is not None:
            measured["of_limit_after"] = of(found[limit], seconds, case, case.change)
        curve = {int(blocks): right for blocks, right in result["accuracy"].get(name, {}).items()}
        whole_s = {number: one_s * measured["samples"] for number, one_s in seconds.items()}
        measured |= reached(case, curve, target, result["settled"].get(name, []), whole_s)
        measured["accuracy"] = curve.get(common)
        methods[name] = measured
    rivals = [name for name in found if name in RIVALS]
    best = max(rivals, key=lambda name: methods[name]["of_limit"])
    return {
        "about": case.about,
        "workload": result["about"],
        "shares": [list(row) for row in case.shares],
        "global_batch": case.global_batch,
        "limit": limit,
        "ours": case.ours,
        "methods": methods,
        "best_rival": best,
        "gain_over_best_rival": of(found[best], found[case.ours], case),
        "gain_spread": Spread.of(ratios(found[best], found[case.ours])).pair,
        "target_accuracy": target,
        "accuracy_at": common * case.block,
        "batches": result["split"],
    }


def target_accuracy(curve: Mapping[str, float]) -> float | None:
    """Return a little less than DDP's best; None if it was measured only once."""
    return TARGET * max(curve.values()) if len(curve) > 1 else None


def reached(
    case: LbBspCase, curve: ByNumber, target: float | None, settled: Sequence[float], seconds: ByNumber
) -> dict[str, float | None]:
    """Return when an arm reached the target, in iterations and in seconds from its first iteration on.

    Blocks in which it found its split count with their time. An arm without such blocks counts its rounds under the
    same shares and links instead. Blocks at full speed in the end count with the mean of its others.

    ``curve``: blocks trained → held-out accuracy; ``settled``: seconds an iteration of the blocks before the first
    round; ``seconds``: an iteration of the rounds takes, in their order, for any number of samples.
    """
    good = [blocks for blocks in sorted(curve) if target is not None and curve[blocks] >= target]
    if not good:
        return {"iterations_to_target": None, "time_to_target_s": None}
    alike = (case.change or 1) if case.changing else case.rounds
    first_s = statistics.fmean(one_s for number, one_s in seconds.items() if number < alike)
    took = [*(settled or [first_s] * case.settling), *seconds.values()]
    mean_s = statistics.fmean(seconds.values())
    blocks = good[0]
    each_s = [*took[:blocks], *[mean_s] * max(blocks - len(took), 0)]
    return {"iterations_to_target": blocks * case.block, "time_to_target_s": sum(each_s) * case.block}
