"""``uneven bench loops``: samples of unequal cost, and evaluations, on workers with .6, .4, .2 and .1 of a core."""

import json
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uneven_bench.harness.figures import Spread
from uneven_bench.harness.program import program
from uneven_bench.harness.show import Progress, chosen

CASES = ("packed", "padded", "evaluate")
SHARES = "0.6,0.4,0.2,0.1"

Rounds = list[dict[str, list[dict[str, float]]]]  # each worker's results, by round, then by arm


def run(quick: bool, progress: Progress, case: str | None = None) -> dict[str, Any]:
    """Play all cases, or one. Returns by case and arm, medians over the rounds and their middle halves. ``packed`` and
    ``padded``: ``letters_per_s`` of all workers, ``gain`` over balancing by counts. ``evaluate``: ``took_s``,
    ``of_limit``: the evaluation's speed as a share of all workers' speeds in their own batches, added up. Raises
    UnknownNameError: the case is unknown. LaunchError: a run failed."""
    wanted = chosen(case, CASES)
    rounds, seconds = (1, 2.0) if quick else (5, 8.0)
    found: dict[str, Any] = {"rounds": rounds}
    for number, name in enumerate(wanted):
        progress("running", name, number / len(wanted))
        played = _play(name, rounds, seconds)
        found[name] = evaluated(played) if name == "evaluate" else trained(played)
    progress("running", "done", 1.0)
    return found


def _play(case: str, rounds: int, seconds: float) -> Rounds:
    with tempfile.TemporaryDirectory(prefix="uneven-loops-") as folder:
        words = ("uneven", "run", "--nproc", 4, "--shares", SHARES, "--run-dir", f"{folder}/run", "--module")
        program(*words, "uneven_bench.loops.worker", case, rounds, seconds, folder)
        workers = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(4)]
    return [{arm: [one[number][arm] for one in workers] for arm in workers[0][number]} for number in range(rounds)]


def trained(rounds: Rounds) -> dict[str, Any]:
    """Return throughput by arm, and the gain of each round."""
    speeds = [
        {arm: sum(one["letters"] for one in each) / each[0]["took_s"] for arm, each in played.items()}
        for played in rounds
    ]
    return {
        "letters_per_s": {arm: statistics.median(one[arm] for one in speeds) for arm in speeds[0]},
        "gain": asdict(Spread.of(one["costs"] / one["counts"] for one in speeds)),
    }


def evaluated(rounds: Rounds) -> dict[str, Any]:
    """Return time by arm, and the share of the limit, all workers' speeds in their own batches."""
    ours = [one["session.evaluate"] for one in rounds]
    limits_s = [each[0]["samples"] / sum(one["seen"] / one["busy_s"] for one in each if one["busy_s"]) for each in ours]
    arms = [*rounds[0]]
    times_s = {arm: [played[arm][0]["took_s"] for played in rounds] for arm in arms}
    return {
        "took_s": {arm: statistics.median(each) for arm, each in times_s.items()},
        "of_limit": {arm: asdict(Spread.ratio(limits_s, each)) for arm, each in times_s.items()},
    }
