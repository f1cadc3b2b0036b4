"""Learning of sites on slow lines in virtual time, by policy: loss over seconds and over bytes."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.simulate import Scenario
from uneven.cluster.virtual import train
from uneven.policy.balance import balancers
from uneven.policy.core.records import LineRecord, Record, ScalarRecord
from uneven.policy.sync import policies
from uneven_bench.far_sites.cases import BSP, POLICIES, LearningCase, worlds
from uneven_bench.far_sites.tasks import LossTask, make
from uneven_bench.harness.figures import in_turns, place_of, value_at
from uneven_bench.harness.show import Progress

TARGET = 0.5  # the part of BSP's steps after which its loss is the target of the others


class LossPoint(NamedTuple):
    """An evaluation: virtual seconds, bytes on all lines, held-out loss and accuracy."""

    seconds: float
    carried_bytes: float
    loss: float
    accuracy: float


def learn(spec: ClusterSpec, policy: str, task: LossTask, steps: int, every: int, seed: int) -> list[LossPoint]:
    """Train once."""
    carried, at = 0, []

    def sink(record: Record) -> None:
        nonlocal carried
        if isinstance(record, LineRecord):
            carried += record.sent_bytes
        elif isinstance(record, ScalarRecord) and record.name == "accuracy":
            at.append(carried)

    even, resolved = balancers.resolve("even"), policies.resolve(policy)
    scenario = Scenario(spec=spec, balancer=even, policy=resolved, iterations=steps, seed=seed)
    found = train(scenario, task, sink, every=every)
    rows = zip(found.points, at, task.losses, strict=True)
    return [LossPoint(point.at_s, bytes_, loss, point.accuracy) for point, bytes_, loss in rows]


def curve(points: Sequence[LossPoint], axis: str) -> list[tuple[float, float]]:
    """Return the losses over an axis, ``seconds`` or ``carried_bytes``."""
    return [(float(getattr(point, axis)), point.loss) for point in points]


def loss_at(points: Sequence[LossPoint], axis: str, where: float) -> float:
    """Return the loss at a place of an axis, interpolated linearly; the first or last one beyond its ends."""
    over = curve(points, axis)
    return value_at(over, min(max(where, over[0][0]), over[-1][0]))


def play(case: LearningCase, told: Progress) -> dict[str, Any]:
    """All policies in all worlds with all seeds, the policies in turns; world → what came of it. Raises DataError: the
    task's data are not on this machine."""
    maker, known = make(case.task, case.samples), worlds()
    curves: dict[str, dict[str, list[list[LossPoint]]]] = {name: {p: [] for p in case.policies} for name in case.worlds}
    phase = f"{case.task}, in virtual time"
    for seed, name, policy in in_turns(told, phase, range(case.seeds), case.worlds, case.policies):
        text, *rates = case.rates.get(policy, (policy,))
        points = learn(known[name], POLICIES[text], maker(seed, *rates), case.steps, case.every, seed)
        curves[name][policy].append(points)
    return {name: summarize(each, case.steps, case.every) for name, each in curves.items()}


def summarize(curves: Mapping[str, Sequence[Sequence[LossPoint]]], steps: int, every: int) -> dict[str, Any]:
    """Return the figures of one world: medians over the seeds, each seed compared with BSP of that seed."""
    half = max(0, round(TARGET * steps / every) - 1)
    targets = [points[half].loss for points in curves[BSP]]
    ends = [point for each in curves.values() for points in each for point in points[-1:]]
    equal_s, equal_bytes = min(one.seconds for one in ends), min(one.carried_bytes for one in ends)
    rows = {}
    for policy, each in curves.items():
        sooner: list[float | None] = []
        fewer: list[float | None] = []
        for own, bsp, target in zip(each, curves[BSP], targets, strict=True):
            for found, axis in ((sooner, "seconds"), (fewer, "carried_bytes")):
                mine, its = (place_of(curve(points, axis), target) for points in (own, bsp))
                found.append(its / mine if mine and its else None)
        worse = [own[-1].loss - bsp[-1].loss for own, bsp in zip(each, curves[BSP], strict=True)]
        rows[policy] = {
            "times_sooner": _median(sooner),
            "times_sooner_seeds": sooner,
            "times_fewer_bytes": _median(fewer),
            "final_loss": statistics.median(points[-1].loss for points in each),
            "final_loss_vs_bsp": statistics.median(worse),
            "final_accuracy": statistics.median(points[-1].accuracy for points in each),
            "loss_equal_time": statistics.median(loss_at(points, "seconds", equal_s) for points in each),
            "loss_equal_bytes": statistics.median(loss_at(points, "carried_bytes", equal_bytes) for points in each),
            "step_s": statistics.median(points[-1].seconds for points in each) / steps,
            "step_bytes": statistics.median(points[-1].carried_bytes for points in each) / steps,
        }
    return {"target_loss": statistics.median(targets), "equal_s": equal_s, "equal_bytes": equal_bytes, "policies": rows}


def _median(values: Sequence[float | None]) -> float | None:
    """Return the median, with None as never."""
    ordered = sorted(value if value is not None else 0.0 for value in values)
    return ordered[len(ordered) // 2] or None
