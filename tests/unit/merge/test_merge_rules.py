"""The merges on vectors, against their definitions and against torch."""

import pytest
import torch

from uneven.core.actions import BlockMomentum
from uneven.merge import Block, mean, pull, significant

F64 = torch.float64


def test_a_mean_is_weighted_and_leaves_a_single_vector_as_it_is() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 6.0])
    assert mean([one, two], [3, 1]).tolist() == [2.0, 3.0]
    assert mean([one], [0]) is one


def test_where_nobody_has_weight_all_count_the_same() -> None:
    assert mean([torch.tensor([1.0]), torch.tensor([3.0])], [0, 0]).tolist() == [2.0]


def test_a_pull_keeps_the_sum_of_replica_and_centre() -> None:
    replica, centre = torch.tensor([4.0]), torch.tensor([0.0])
    d = pull(replica, centre, 0.25)
    assert d.tolist() == [1.0]
    assert ((replica - d) + (centre + d)).tolist() == [4.0]


def test_significant_is_relative_to_the_value() -> None:
    change, values = torch.tensor([0.1, -0.1, 0.2, 0.0, 1e-9]), torch.tensor([1.0, 10.0, -1.0, 0.0, 0.0])
    assert significant(change, values, 0.05).tolist() == [True, False, True, False, True]


@pytest.mark.parametrize("nesterov", [False, True])
def test_block_momentum_starts_its_blocks_where_torchs_sgd_is(nesterov: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(3, dtype=F64, generator=generator)
    moves = [torch.randn(3, dtype=F64, generator=generator) for _ in range(4)]
    weights = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=nesterov)
    block, before = Block.first(start), None
    for move in moves:
        before, block = block, block.after(block.start + move, BlockMomentum(0.9, 0.7, nesterov), before)
        weights.grad = -move
        optimizer.step()
        assert torch.allclose(block.start, weights.detach(), atol=1e-12)
