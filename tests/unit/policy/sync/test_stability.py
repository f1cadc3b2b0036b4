"""Up to which learning rate sites settle that hear of each other late."""

from __future__ import annotations

import pytest

from uneven.errors import ConfigError
from uneven.policy.sync import check_momentum, policies
from uneven.policy.sync.compatibility import check_lead, stable_rate


@pytest.mark.parametrize(
    ("momentum", "rates"), [(0.0, (2.0, 1.5, 1.1)), (0.5, (3.0, 0.75, 0.45)), (0.9, (3.8, 0.15, 0.08))]
)
def test_the_rate_that_settles(momentum: float, rates: tuple[float, ...]) -> None:
    assert [stable_rate(momentum, 3, lead) for lead in range(3)] == pytest.approx(rates, abs=0.01)


@pytest.mark.parametrize(("momentum", "lead"), [(0.0, 1), (0.5, 1), (0.9, 1), (0.0, 2)])
def test_a_run_by_hand_settles_below_it_and_not_above(momentum: float, lead: int) -> None:
    for part in (0.9, 1.1):
        rate, x, moves = part * stable_rate(momentum, 3, lead), 1.0, [0.0] * (lead + 1)
        for _ in range(4000):
            moves.append(momentum * moves[-1] - rate / 3 * x)
            x += moves[-1] + 2 * moves[-1 - lead]
        assert (abs(x) < 1e-3) == (part < 1)


def test_a_momentum_that_does_not_go_with_a_lead_is_refused() -> None:
    check_lead(0, 0.9, 3)
    check_lead(1, 0.9, 1)
    check_momentum(policies.resolve("geo:lead=2"), 0.0, 3)
    check_momentum(policies.resolve("bsp"), 0.9, 3)
    with pytest.raises(ConfigError, match=r"lead = 1 with momentum 0\.9 at 3 sites .* momentum of 0\.5 at most"):
        check_momentum(policies.resolve("scout:geo:bsp:lead=1"), 0.9, 3)
