"""Shares that are set once."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict

from uneven.errors import ConfigError
from uneven.policy.balance.balancer import Balancer, standing
from uneven.policy.core.actions import Split
from uneven.policy.core.apportion import proportional
from uneven.policy.core.plain import Amount, Count, Misfit, read, whole_key
from uneven.policy.core.views import BalanceView

_PROFILE = 5  # reports [default]


class _StaticState(TypedDict):
    weights: dict[str, Amount] | None
    seen: dict[str, tuple[int, Count, Amount]]


class Static(Balancer):
    """Uses given shares, or those from a short profile, and never changes them.

    Args:
        shares: one number per rank, relative to each other (0.6/0.4 is the same as 3/2).
        profile: instead of shares, the number of reports over which each worker's mean speed is taken. Until then the
            split stays. Without either, 5 reports.

    Raises:
        ConfigError: both are given, or one of them is invalid.
    """

    predictor = "last"

    def __init__(self, *, shares: Sequence[float] | float | None = None, profile: int | None = None) -> None:
        if shares is not None and profile is not None:
            raise ConfigError("static: shares and profile exclude each other: give one of them")
        self._profile = _checked_profile(_PROFILE if profile is None else profile)
        self._weights = None if shares is None else dict(enumerate(_checked_shares(shares)))
        self._given = shares is not None
        self._seen: dict[int, tuple[int, int, float]] = {}  # rank: newest iteration, reports, sum of speeds

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """True until the profile is complete."""
        return self._weights is None

    @property
    def made_for(self) -> int | None:  # type: ignore[override]
        """The number of given shares; None without."""
        return len(self._weights) if self._given and self._weights is not None else None

    def split(self, view: BalanceView) -> Split:
        """Return the set shares; the current ones during the profile.

        Raises:
            ConfigError: the numbers of shares and workers differ.
        """
        if self._weights is None:
            self._take_in(view)
        if self._weights is None:
            least = min((self._seen.get(rank, (0, 0, 0.0))[1] for rank in view.members), default=0)
            return Split(standing(view), f"profiling: {least} of {self._profile} reports")
        self._check_members(view)
        # A worker that joined after the profile counts as the mean of the others (NaN for `proportional`).
        weights = [self._weights.get(rank, math.nan) for rank in view.members]
        shares = proportional(weights, view.global_batch, view.limits)
        how = "given" if self._given else f"from the mean speed of {self._profile} reports"
        return Split(shares, f"static: shares {how}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": None if self._weights is None else {str(r): w for r, w in self._weights.items()},
            "seen": {str(rank): list(row) for rank, row in self._seen.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, except shares given to the constructor."""
        saved = read(_StaticState, state)
        weights = saved["weights"]
        self._seen = {whole_key(rank, "seen"): row for rank, row in saved["seen"].items()}
        if not self._given:
            by_rank = None if weights is None else {whole_key(r, "weights"): w for r, w in weights.items()}
            if by_rank is not None and not (by_rank.keys() >= self._seen.keys() and sum(by_rank.values()) > 0.0):
                raise Misfit(weights, "a weight of each rank in seen, and not all of them 0", "weights")
            self._weights = by_rank

    def _take_in(self, view: BalanceView) -> None:
        for rank, seen in zip(view.members, view.observed, strict=True):
            newest, reports, speeds = self._seen.get(rank, (-1, 0, 0.0))
            # A view repeats a worker's last report until there is a newer one.
            if seen is not None and seen.iteration > newest and seen.speed_per_s > 0:
                if reports < self._profile:
                    reports, speeds = reports + 1, speeds + seen.speed_per_s
                self._seen[rank] = (seen.iteration, reports, speeds)
        rows = {rank: self._seen.get(rank, (-1, 0, 0.0)) for rank in view.members}
        if all(reports >= self._profile for _, reports, _ in rows.values()):
            self._weights = {rank: speeds / reports for rank, (_, reports, speeds) in rows.items()}
            self._seen = rows  # a worker that has left has no weight

    def _check_members(self, view: BalanceView) -> None:
        if not self._given or self._weights is None:
            return
        count, workers = len(self._weights), len(view.members)
        everybody = view.members == tuple(range(workers))
        if view.members[-1] >= count or (everybody and count != workers):
            raise ConfigError(
                f"static: {count} shares do not fit {max(workers, view.members[-1] + 1)} workers: "
                f"give one share per worker"
            )


def _checked_shares(shares: Sequence[float] | float) -> list[float]:
    row: list[Any] = list(shares) if isinstance(shares, (tuple, list)) else [shares]
    for share in row:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < math.inf:
            raise ConfigError(f"static: share {share!r} must be a number, zero or positive: 0.6/0.4, or 3/2")
    if not any(row):
        raise ConfigError(f"static: shares = {row} give no samples: at least one must be positive")
    return [float(share) for share in row]


def _checked_profile(profile: int) -> int:
    if isinstance(profile, bool) or not isinstance(profile, int) or profile < 1:
        raise ConfigError(f"static: profile = {profile!r} must be a whole number of reports, at least 1")
    return profile
