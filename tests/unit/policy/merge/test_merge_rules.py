"""The merges on vectors, against their definitions and against torch."""

import pytest
import torch

from uneven.cluster.virtual.virtual_replicas import mean
from uneven.policy.merge import BlockMomentum, Elastic, Kept

F64 = torch.float64


def after(kept: Kept, given: torch.Tensor, rule: BlockMomentum, samples: float, in_place: bool = False) -> Kept:
    """What is kept after a block whose mean is ``given``."""
    return rule.combine(kept, given.clone(), samples, in_place=in_place)[0]


def test_a_mean_is_weighted_and_leaves_a_single_vector_as_it_is() -> None:
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 6.0])
    assert mean([one, two], [3, 1]).tolist() == [2.0, 3.0]
    assert mean([one], [0]) is one


def test_where_nobody_has_weight_all_count_the_same() -> None:
    assert mean([torch.tensor([1.0]), torch.tensor([3.0])], [0, 0]).tolist() == [2.0]


def test_an_elastic_exchange_of_all_keeps_the_sum_of_replicas_and_centre() -> None:
    rule, replicas = Elastic(0.25), [torch.tensor([1.0, 5.0]), torch.tensor([3.0, 1.0])]
    kept = rule.begin(torch.tensor([0.0, 1.0]))
    given = [rule.contribute(one, kept) for one in replicas]
    assert [one.tolist() for one in given] == [[0.25, 1.0], [0.75, 0.0]]
    _, centre = rule.combine(kept, given[0] + given[1], 2)
    assert centre.tolist() == [1.0, 2.0]
    assert rule.distance(0.5) == 2.0, "contributions differ by a quarter of what replicas do"


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_block_momentum_starts_its_blocks_where_torchs_sgd_is(nesterov: bool, in_place: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(3, dtype=F64, generator=generator)
    moves = [torch.randn(3, dtype=F64, generator=generator) for _ in range(4)]
    weights = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=nesterov)
    rule = BlockMomentum(0.9, 0.7, nesterov)
    block = rule.begin(start)
    for move in moves:
        block = after(block, block["start"] + move, rule, 64, in_place)
        weights.grad = -move
        optimizer.step()
        assert torch.allclose(block["start"], weights.detach(), atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_an_exchange_without_a_step_before_it_moves_nothing_and_forgets_nothing(nesterov: bool) -> None:
    rule, move = BlockMomentum(0.75, 0.5, nesterov), torch.tensor([1.0, -2.0], dtype=F64)
    block = after(rule.begin(torch.zeros(2, dtype=F64)), move, rule, 100)
    idle = after(block, block["start"], rule, 0)
    for name in ("copy", "delta", "start", "block"):
        assert torch.equal(torch.as_tensor(idle[name]), torch.as_tensor(block[name]))


@pytest.mark.parametrize("nesterov", [False, True])
def test_blocks_of_the_warm_up_are_not_carried_on(nesterov: bool) -> None:
    rule = BlockMomentum(0.5, nesterov=nesterov, warmup_samples=25)
    block, starts = rule.begin(torch.zeros(1, dtype=F64)), []
    for _ in range(5):  # the third one ends after the warm-up
        block = after(block, block["start"] + 8.0, rule, 10, in_place=True)
        starts.append(float(block["start"]))
    assert starts == ([8.0, 16.0, 28.0, 42.0, 57.0] if nesterov else [8.0, 16.0, 24.0, 36.0, 50.0])


@pytest.mark.parametrize(
    ("lengths", "least"),
    [((100,) * 60, 3.9), ((100, *(10,) * 590), 3.9), ((100, *(3, 97) * 59), 3.6), ((10, *(50, 1, 149) * 30), 2.2)],
)
def test_blocks_of_any_length_reach_the_same_speed_and_never_more(lengths: tuple[int, ...], least: float) -> None:
    rule = BlockMomentum(0.75)  # with which every sample moves it by 1 / (1 − 0.75) in the end
    block = rule.begin(torch.zeros(1, dtype=F64))
    speeds = []
    for samples in lengths:
        before = float(block["copy"])
        block = after(block, block["start"] + samples, rule, samples, in_place=True)
        speeds.append((float(block["copy"]) - before) / samples)
    assert max(speeds) < 4.01
    assert speeds[-1] > least, "who is longer than usual has less of the momentum"
