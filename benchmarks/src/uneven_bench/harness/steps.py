"""Steps in journals."""

import math
from collections.abc import Iterable, Sequence

from uneven.policy.core.records import Record, StepRecord


def steps_of(records: Iterable[Record], since: int = 0) -> dict[int, list[StepRecord]]:
    """Return rank → its steps from an iteration on."""
    steps: dict[int, list[StepRecord]] = {}
    for record in records:
        if isinstance(record, StepRecord) and record.iteration >= since:
            steps.setdefault(record.rank, []).append(record)
    return steps


def took_s(step: StepRecord) -> float:
    return step.data_s + step.compute_s + step.exchange_s


def control_share(steps: Sequence[StepRecord]) -> float:
    """Return a worker's share of time for measuring and deciding."""
    return math.fsum(one.control_s for one in steps) / math.fsum(map(took_s, steps))
