"""Real runs on emulated lines between sites: the time of a step, and the time to a loss.

All arms train by turns in the same processes, as in ``uneven bench sync``. All workers of an arm take their steps
together, so the loss after a number of steps does not depend on the lines. A step is therefore timed on the slow lines,
and the other steps run on free lines; the time to a loss is the product.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uneven.cluster.pure.describe.spec import SiteLink, steady
from uneven_bench.far_sites.cases import BSP
from uneven_bench.far_sites.learning import TARGET
from uneven_bench.harness.figures import place_of, value_at
from uneven_bench.harness.show import Progress
from uneven_bench.harness.worker import staged
from uneven_bench.sync.cases import SyncCase, package_of

_WORKER = "uneven_bench.sync.worker"


def play(case: SyncCase, data: str, directory: Path, told: Progress) -> dict[str, Any]:
    """One world. Raises LaunchError: a worker died."""
    needed = {name: package_of(who) for name, who in case.arms.items()}
    missing = sorted({one for one in needed.values() if one and find_spec(one) is None})
    case = replace(case, arms={name: who for name, who in case.arms.items() if needed[name] not in missing})
    links = [
        SiteLink(between=(here, there), bit_per_s=steady(mbit * 1e6), latency_s=latency_s)
        for here, there, mbit, latency_s in case.lines
    ]
    task = {"what": case.name, "case": asdict(case), "data": data}
    result = staged(directory, _WORKER, task, case.workers, isolated=True, said=told, sites=case.sites, links=links)
    return {**summarize(result["arms"]), "left_out": [f"{one} is not installed" for one in missing]}


def summarize(arms: Mapping[str, Any]) -> dict[str, Any]:
    """Return arm → seconds of a step on the lines, loss after the steps, and the speed-up over BSP to a loss. ``arms``:
    as a worker of ``uneven bench sync`` writes them."""
    curves = {name: _curve(arm) for name, arm in arms.items()}
    equal = min(points[-1][0] for points in curves.values())
    target = value_at(curves[BSP], TARGET * equal)
    times_s = {name: _step_s(arm) for name, arm in arms.items()}
    to_loss_s = {name: _product(place_of(points, target), times_s[name]) for name, points in curves.items()}
    bsp_s = to_loss_s[BSP]
    assert bsp_s is not None, "the target is on BSP's own curve"
    rows = {}
    for name, arm in arms.items():
        counted = [one for ranks in arm["blocks"][1 : arm["limited"]] for one in ranks]
        own_s = to_loss_s[name]
        rows[name] = {
            "step_s": times_s[name],
            "step_s_rounds": [_of_round(ranks) for ranks in arm["blocks"][1 : arm["limited"]]],
            "sent_bytes": sum(one["sent_bytes"] for one in counted) / sum(one["steps"] for one in counted),
            "to_loss_s": own_s,
            "times_sooner": None if own_s is None else bsp_s / own_s,
            "final_loss": value_at(curves[name], equal),
            "final_loss_vs_bsp": value_at(curves[name], equal) - value_at(curves[BSP], equal),
        }
    return {"target_loss": target, "equal_steps": equal, "policies": rows}


def _of_round(ranks: Sequence[Mapping[str, Any]]) -> float:
    return float(max(one["seconds"] for one in ranks) / ranks[0]["steps"])


def _step_s(arm: Mapping[str, Any]) -> float:
    """Return the median of the rounds that count."""
    return statistics.median(_of_round(ranks) for ranks in arm["blocks"][1 : arm["limited"]])


def _curve(arm: Mapping[str, Any]) -> list[tuple[int, float]]:
    """Return steps taken and loss, from before the first one on."""
    steps, points = 0, [(0, float(arm["losses"][0]))]
    for ranks, loss in zip(arm["blocks"], arm["losses"][1:], strict=True):
        steps += ranks[0]["steps"]
        points.append((steps, float(loss)))
    return points


def _product(steps: float | None, step_s: float) -> float | None:
    return None if steps is None else steps * step_s
