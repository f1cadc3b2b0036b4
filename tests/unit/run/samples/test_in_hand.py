"""A batch is noted as learnt once, however often there are evaluations in its midst."""

from __future__ import annotations

from uneven.policy.samples.order import Portion
from uneven.run.samples.async_sampling.leased_samples import BatchInHand


def test_each_batch_is_noted_once_and_again_where_it_comes_again() -> None:
    noted: list[int] = []
    hand = BatchInHand(lambda part: noted.append(part.iteration))
    first, second = (Portion(iteration=at, epoch=0, start=4 * at, size=4, shares=(4,)) for at in range(2))
    hand.learns()
    assert hand.gives() == 0, "no batch"
    hand.begins(first)
    assert (hand.gives(), noted) == (0, []), "and no step"
    hand.trained = True
    assert (hand.gives(), hand.gives(), noted) == (1, 1, [0])
    hand.ends(first)
    assert (hand.gives(), noted) == (0, [0])
    hand.begins(second)
    hand.ends(second)
    hand.begins(first)  # a state from before was loaded
    hand.ends(first)
    assert noted == [0, 1, 0]
