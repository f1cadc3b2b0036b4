"""One sample at a time, against the rule word for word."""

from __future__ import annotations

import random

import numpy as np
import pytest

from uneven.policy.core.exact import column
from uneven_bench.balancers.rivals.greedy import hand_out, take_back


def one_by_one(shares: list[int], left: int, a: list[float], b: list[float], upper: list[int]) -> list[int]:
    shares = list(shares)
    for _ in range(left):
        i = min((a[i] + b[i] * (x + 1), i) for i, x in enumerate(shares) if x < upper[i])[1]
        shares[i] += 1
    return shares


@pytest.mark.parametrize("left", [1, 99, 130, 300, 500])
@pytest.mark.parametrize("costs", [(1.0,), (1.0, 2.0, 4.0), (1.0, 1.9), (0.01, 1.0)])
def test_samples_go_one_by_one_to_the_earliest(costs: tuple[float, ...], left: int) -> None:
    rng = random.Random(f"{costs} {left}")
    for n, first, scatter in ((140, 3, 0.0), (300, 0, 0.0), (300, 3, 1.0)):
        shares = [rng.randint(0, first) if scatter else first for _ in range(n)]
        a, b = [scatter * rng.random() for _ in range(n)], [rng.choice(costs) for _ in range(n)]
        upper = [share + rng.randint(0, 12) for share in shares]
        made = np.array(shares)
        hand_out(made, left, column(a), column(b), column(upper))
        assert made.tolist() == one_by_one(shares, left, a, b, upper)


def test_taking_back_takes_from_the_last_to_finish() -> None:
    shares = np.array([3, 3, 3])
    take_back(shares, 2, np.zeros(3), np.array([1.0, 2.0, 1.9]), np.zeros(3))
    assert shares.tolist() == [3, 2, 2]
    shares = np.array([3, 3, 1])
    take_back(shares, 2, np.zeros(3), np.ones(3), np.array([0.0, 0.0, 1.0]))
    assert shares.tolist() == [2, 2, 1], "of equals the higher rank gives first; nobody goes below a limit"
