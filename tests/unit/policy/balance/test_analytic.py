"""The poster's formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from uneven.errors import ConfigError
from uneven.policy.balance import Analytic
from uneven.policy.core.actions import Split
from uneven.policy.core.views import BalanceView, Limits, Observation

Seconds = Callable[[int, int], float]


def play(
    balancer: Analytic, shares: Sequence[int], seconds: Seconds, rounds: int, start: int = 0, most: int | None = None
) -> list[Split]:
    """Reports of two iterations, each split in force at once."""
    splits = []
    for k in range(start, start + rounds):
        seen = tuple(
            Observation(iteration=2 * k, samples=2 * x, local_s=2 * seconds(i, x), iterations=2)
            for i, x in enumerate(shares)
        )
        n, total = len(shares), sum(shares)
        limits = Limits(lower=(1,) * n, upper=(most or total, *(total,) * (n - 1)))
        splits.append(
            balancer.split(
                BalanceView(
                    iteration=2 * k, global_batch=total, members=tuple(range(n)), shares=tuple(shares),
                    observed=seen, predicted_per_s=(1.0,) * n, limits=limits,
                )
            )
        )  # fmt: skip
        shares = splits[-1].shares
    return splits


def affine(*costs: tuple[float, float]) -> Seconds:
    return lambda i, x: costs[i][0] + costs[i][1] * x


def test_it_learns_from_one_small_move_and_then_solves() -> None:
    splits = play(Analytic(), (100, 100), affine((0.05, 0.001), (0.0, 0.002)), 20)
    reasons = list(dict.fromkeys(split.reason.split(":")[1].split(",")[0].strip() for split in splits))
    assert reasons == ["watching", "a small move", "solved", "kept"]
    stirred = next(split for split in splits if "small move" in split.reason)
    assert stirred.shares == (110, 90)
    x, y = splits[-1].shares
    assert abs((0.05 + 0.001 * x) - 0.002 * y) < 0.01


def test_a_worker_at_its_limit_gives_samples_in_the_small_move() -> None:
    splits = play(Analytic(), (32, 32), affine((0.0, 0.01), (0.0, 0.001)), 20, most=32)
    assert next(split for split in splits if "small move" in split.reason).shares == (29, 35)
    assert splits[-1].shares == (5, 59)


def test_a_profile_needs_no_move() -> None:
    balancer = Analytic(profile=((0.0, 0.05, 0.001), (0.0, 0.0, 0.002)))
    (first,) = play(balancer, (100, 100), affine((0.05, 0.001), (0.0, 0.002)), 1)
    assert first == Split((117, 83), "analytic: from the profile")


def test_a_lasting_change_makes_it_forget() -> None:
    balancer = Analytic()
    before = play(balancer, (100, 100), affine((0.0, 0.001), (0.0, 0.002)), 20)[-1].shares
    after = play(balancer, before, affine((0.0, 0.004), (0.0, 0.002)), 40, start=20)
    assert sum("small move" in split.reason for split in after) == 1
    assert abs(after[-1].shares[0] - 67) <= 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"window": 0}, "window"), ({"restart": 0.0}, "restart"), ({"profile": ((0.0, 0.1, 0.0),)}, "rank 0")],
)
def test_bad_options_are_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Analytic(**options)  # type: ignore[arg-type]
