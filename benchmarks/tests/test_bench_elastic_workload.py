"""What ``uneven bench elastic`` trains."""

from __future__ import annotations

import pytest

from uneven.cli.demo.demo_training import network
from uneven.cli.demo.demo_worker import GLOBAL_BATCH, WIDTH
from uneven.cluster.virtual.datasets import digits
from uneven_bench.elastic.workload import CountedWorkload, counted, hidden, weights


@pytest.mark.parametrize("size", [4_000_000, 100_000_000])
def test_models_have_the_size_that_they_are_named_after(size: int) -> None:
    width = hidden(size // 4)
    assert width * width + 76 * width + 10 == pytest.approx(size / 4, rel=0.01)


def test_the_demo_is_what_uneven_demo_trains() -> None:
    demo = CountedWorkload(demo=True, samples=2_000, global_batch=GLOBAL_BATCH, per_sample_s=0.0)
    model, data = demo.model(), demo.data()
    trained = network(digits(), WIDTH).parameters()
    assert all(bool((one == other).all()) for one, other in zip(weights(model), trained, strict=True))
    x, y = digits().train.tensors
    rows, labels, _ = data[list(range(2_000))]
    assert bool((rows[: len(y)] == x).all())
    assert bool((labels[len(y) :] == y[: 2_000 - len(y)]).all())
    model(*data[[1, 1_999]]).backward()
    assert counted(model) == [1, 1_999]
