"""Series of one worker, shown to a predictor as a run would."""

from __future__ import annotations

import math
from collections.abc import Sequence

from uneven.policy.core.views import Observation
from uneven.policy.predict import Predictor, study


def show(
    predictor: Predictor,
    speeds_per_s: Sequence[float],
    cpu: Sequence[float] | None = None,
    memory: Sequence[float] | None = None,
    first: int = 0,
) -> list[float]:
    """The prediction of each iteration, made before it; lessons are learnt as soon as they are handed out."""
    told = []
    for k, speed in enumerate(speeds_per_s):
        told.append(predictor.predict())
        predictor.observe(
            Observation(
                iteration=first + k,
                samples=100,
                local_s=100 / speed,
                cpu=math.nan if cpu is None else cpu[k],
                memory=math.nan if memory is None else memory[k],
            )
        )
        study(predictor)
    return told
