"""A NaN in a shard's gradients on a device that waits by itself, where reading a flag makes the host wait."""

from __future__ import annotations

import torch

from uneven.policy.core.batch_weight import BatchWeight
from uneven.run.gradients.sharded_gradients import ShardedGradients
from uneven.run.lines.traffic import Traffic
from uneven.run.measure.meter import HostClock, Meter


def test_a_nan_is_told_once_and_later() -> None:
    told: list[int] = []
    gradients = ShardedGradients(
        turn_now=lambda: None,
        observer=Meter(HostClock()),
        roll=None,  # type: ignore[arg-type] # nothing is exchanged
        on_nonfinite=lambda: told.append(1),
        traffic=Traffic(),
        turn=BatchWeight(iteration=0, epoch=0, samples=1, weight=1.0),
        group=None,
        members=(0, 1),
        _counts=True,
        _nonfinite=torch.zeros(()),
    )
    for numbers in ([1.0, 2.0], [1.0, float("nan")], [float("inf"), 0.0]):
        gradients.check(torch.tensor(numbers))
    counts = []
    for iteration in (49, 50, 51, 100):
        gradients.poll(iteration)
        counts.append(len(told))
    assert counts == [0, 1, 1, 1]
