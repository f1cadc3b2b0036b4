"""The keys of ``uneven bench sync``, from its workers' measurements."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from uneven_bench.harness.figures import Spread, place_of
from uneven_bench.sync.cases import AGAIN, BARE, DDP, SHADOWS, TWINS, YARDSTICK, SyncCase, seed_of, seeded

OURS_NOT = (YARDSTICK, AGAIN, BARE, DDP, "ddp-fp16", "ddp-powersgd", "post-local", "torchft-diloco")
"""Arms that are not a policy of ours."""


class CurvePoint(NamedTuple):
    """A point after a stretch of training: seconds of training, samples of all workers, held-out loss."""

    seconds: float
    samples: float
    loss: float


def rate(ranks: Sequence[Mapping[str, Any]], *, own_pace: bool) -> float:
    """Return samples per second of all workers in a stretch: each by its own time if no worker waits."""
    if own_pace:
        return sum(float(one["samples"] / one["seconds"]) for one in ranks)
    return float(sum(one["samples"] for one in ranks) / max(one["seconds"] for one in ranks))


def curve(arm: Mapping[str, Any]) -> list[CurvePoint]:
    """Return the points from before the first step on; seconds stand still without limits."""
    points, seconds, samples = [CurvePoint(0.0, 0.0, arm["losses"][0])], 0.0, 0.0
    for number, (ranks, loss) in enumerate(zip(arm["blocks"], arm["losses"][1:], strict=True)):
        if number < arm["limited"]:
            seconds += max(one["seconds"] for one in ranks)
        samples += sum(one["samples"] for one in ranks)
        points.append(CurvePoint(seconds, samples, loss))
    return points


def limited(arm: Mapping[str, Any]) -> list[CurvePoint]:
    """Return the part of its curve under the limits."""
    return curve(arm)[: arm["limited"] + 1]


def loss_at(points: Sequence[CurvePoint], axis: str, where: float) -> float:
    """Return the loss at a number of ``seconds`` or ``samples``; NaN beyond the last point. Between points it falls as
    a power: a loss falls steeply at first, and a straight line would lie above it."""
    for before, after in pairwise(points):
        low, high = getattr(before, axis), getattr(after, axis)
        if low <= where <= high and high > low:
            part = math.log(where / low) / math.log(high / low) if low > 0 else (where - low) / (high - low)
            return float(before.loss * (after.loss / before.loss) ** part)
    return math.nan


def summarize(case: SyncCase, result: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize one case: its arms, the cost of the twins, DS-Sync's exchange against the ring. Losses at equal samples
    are compared at the fewest samples of any arm; at equal time, at the shortest time under the limits. The target is
    DDP's loss at the end of its time."""
    told = result["arms"]
    curves = {name: curve(arm) for name, arm in told.items()}
    under = {name: limited(arm) for name, arm in told.items()}
    samples = min(points[-1].samples for points in curves.values())
    seconds = min(points[-1].seconds for points in under.values())
    target = under[DDP][-1].loss if DDP in under else math.nan
    rates = {name: _rates(arm) for name, arm in told.items()}
    whole = {name: _whole_rate(arm) for name, arm in told.items()}
    yardsticks = [name for name in (YARDSTICK, AGAIN) if name in told]
    most = statistics.mean(whole[name] for name in yardsticks)
    round_by_round = [statistics.mean(pair) for pair in zip(*(rates[name] for name in yardsticks), strict=True)]
    arms = {}
    for name, arm in told.items():
        share = Spread.ratio(rates[name], round_by_round)
        counted = [one for ranks in arm["blocks"][: arm["limited"]] for one in ranks]
        steps = sum(one["steps"] for one in counted)
        arms[name] = {
            "samples_per_s": whole[name],
            "of_unsynchronised": whole[name] / most,
            "of_unsynchronised_spread": share.pair,
            "of_bare": whole[name] / whole[BARE] if BARE in whole else None,
            "loss_equal_samples": loss_at(curves[name], "samples", samples),
            "loss_equal_time": loss_at(under[name], "seconds", seconds),
            "sync_gap": result["gaps"].get(name),
            "bytes": sum(one["sent_bytes"] for one in counted) / steps,
            "steps": steps,
            "time_to_target_s": place_of([(one.seconds, one.loss) for one in under[name]], target),
        }
    return {
        "about": case.about,
        "workers": case.workers,
        "policies": arms,
        "equal_samples": samples,
        "equal_time_s": seconds,
        "target_loss": target if DDP in under else None,
        "twins_every": result["every"],
        "exchanges": {name: exchanged(result["exchanges"], name) for name in result["exchanges"]},
        "left_out": result["left_out"],
    }


def _rates(arm: Mapping[str, Any]) -> list[float]:
    """Return the rates of the rounds that count."""
    return [rate(ranks, own_pace=arm["own_pace"]) for ranks in arm["blocks"][1 : arm["limited"]]]


def _whole_rate(arm: Mapping[str, Any]) -> float:
    """Return the rate over all rounds that count together, so that an exchange rarer than a round is in it too."""
    counted = arm["blocks"][1 : arm["limited"]]
    ranks = [
        {key: sum(ranks[rank][key] for ranks in counted) for key in ("samples", "seconds")}
        for rank in range(len(counted[0]))
    ]
    return rate(ranks, own_pace=arm["own_pace"])


def exchanged(ways: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Compare one way to exchange with the ring of all: the prediction from its messages, and the measurement. If links
    decide, the prediction is the ratio of a worker's bytes; if single messages do, that of their number."""
    ring, own = ways["everybody"], ways[name]
    ratio = Spread.ratio(ring["seconds"], own["seconds"])
    return {
        "seconds": statistics.median(own["seconds"]),
        "bytes": own["sent_bytes"],
        "messages": own["messages"],
        "faster_than_ring": ratio.median,
        "faster_spread": ratio.pair,
        "predicted_by_bytes": ring["parts"] / own["parts"],
        "predicted_by_messages": ring["messages"] / own["messages"],
    }


def overall(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys of the whole bench from those of its cases; None if no played case has them."""
    pairs = [(name, key) for key, case in cases.items() for name in SHADOWS if name in case["policies"]]
    shares = [(cases[key]["policies"][name]["of_unsynchronised"], name, key) for name, key in pairs]
    worst = min(shares, default=None)
    floors = [one["of_bare"] for case in cases.values() for name, one in case["policies"].items() if name in SHADOWS]
    floor = min((one for one in floors if one is not None), default=None)
    at_100 = [case for key, case in cases.items() if key.startswith("100mbit")]
    grids = {
        key: case["exchanges"]["grid"]
        for key, case in cases.items()
        if case["workers"] > 2 and key.partition("-")[0] in ("100mbit", "20mbit")
    }
    return {
        "shadow_of_unsynchronised": None if worst is None else worst[0],
        "shadow_worst": None if worst is None else {"policy": worst[1], "case": worst[2]},
        "shadow_of_bare": floor,
        "shadow_vs_ddp_100mbit": _sooner(at_100, SHADOWS),
        "best_vs_ddp_100mbit": _sooner(at_100, None),
        "shadow_vs_twin": {key: _against_twins(case["policies"]) for key, case in cases.items()},
        "ds_sync_vs_ring": {
            key: {
                "measured": one["faster_than_ring"],
                "spread": one["faster_spread"],
                "predicted": one["predicted_by_bytes"],
            }
            for key, one in grids.items()
        },
    }


def _sooner(cases: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> float | None:
    """Return how many times sooner than DDP the best of some arms reaches DDP's loss; the worst of the cases."""
    found = []
    for case in cases:
        arms = case["policies"]
        ours = [name for name in arms if (name in names if names is not None else name not in OURS_NOT)]
        times = [s for name in ours if (s := arms[name]["time_to_target_s"]) is not None]
        if DDP in arms and arms[DDP]["time_to_target_s"]:
            found.append(arms[DDP]["time_to_target_s"] / min(times) if times else 0.0)
    return min(found, default=None)


def _against_twins(arms: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shadow's loss less its twin's, at equal samples, of every seed; below 0 the shadow is better."""
    found: dict[str, Any] = {}
    for shadow, twin in TWINS.items():
        pairs = [(seeded(shadow, seed), seeded(twin, seed)) for seed in sorted({seed_of(name) for name in arms})]
        each = [
            arms[one]["loss_equal_samples"] - arms[other]["loss_equal_samples"]
            for one, other in pairs
            if one in arms and other in arms
        ]
        if each:
            found[shadow] = {"mean": statistics.mean(each), "each": each}
    return found
