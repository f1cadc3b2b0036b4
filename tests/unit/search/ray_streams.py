"""Random streams of results, as the recorded decisions of Ray 2.60's AsyncHyperBandScheduler were asked for."""

from __future__ import annotations

from random import Random
from typing import Any


def stream(seed: int) -> tuple[dict[str, Any], list[tuple[int, int, float]]]:
    """Options of the scheduler, and (trial, t, score) in order; a trial goes on whatever is said of it."""
    draw = Random(seed)
    options = {
        "max_t": draw.choice([9, 16, 27, 40, 100]),
        "grace_period": draw.choice([1, 2, 3]),
        "reduction_factor": draw.choice([2, 3, 4, 2.5]),
    }
    at: dict[int, int] = {}
    events = []
    for _ in range(80):
        trial = draw.randrange(12)
        at[trial] = at.get(trial, 0) + draw.choice([1, 1, 1, 2, 5])
        score = float("nan") if draw.random() < 0.03 else round(draw.gauss(trial, 4), draw.choice([0, 1, 12]))
        events.append((trial, at[trial], score))
    return options, events
