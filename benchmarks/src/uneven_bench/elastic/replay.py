"""The steps that a run committed, taken again in one process: the judge of what was in each sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from uneven_bench.elastic.logs import LoggedStep
from uneven_bench.elastic.workload import CountedWorkload, weights


def replay(workload: CountedWorkload, steps: Sequence[LoggedStep]) -> list[torch.Tensor]:
    """The parameters after these steps, each on the mean gradient of its samples, in the order of
    :func:`uneven_bench.elastic.workload.weights`."""
    model = workload.model()
    optimizer = workload.optimizer(model)
    data = workload.data()
    for step in steps:
        x, y, _ = data.batch(step.ids)
        F.cross_entropy(model.layers(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(weights(model))


def error(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """How far parameters are off, relative to the largest of each tensor; the worst."""
    return max(
        float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, wanted, strict=True)
    )
