"""The order of gloo's sums, against gloo itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from uneven_bench.elastic.ring import ring_sum


def summed(those: list[torch.Tensor]) -> torch.Tensor:
    """By gloo, among as many threads."""
    store, count = dist.HashStore(), len(those)

    def one(place: int) -> torch.Tensor:
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=60)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        group = dist.ProcessGroupGloo(dist.PrefixStore("ring", store), place, count, options)
        group.allreduce([mine := those[place].clone()]).wait()
        return mine

    with ThreadPoolExecutor(count) as threads:
        return next(iter([*threads.map(one, range(count))]))


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("size", [7, 12_345, 400_000])
def test_the_same_to_the_last_bit(count: int, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    those = [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(count)]
    whole = summed(those)
    assert torch.equal(ring_sum(those), whole)
    part = ring_sum([one[3:-2] for one in those], before=3, behind=2)
    assert torch.equal(part, whole[3:-2])
    assert count == 2 or not torch.equal(whole, torch.stack(those).sum(0)), "else the order says nothing"
