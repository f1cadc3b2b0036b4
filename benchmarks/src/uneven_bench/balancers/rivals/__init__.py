"""Balancers from the literature, written from their descriptions, to compare ours with.

``docs/ideas/rivals.md`` lists the gaps of each description, and the results. ``uneven plan`` tries only the rivals
named.
"""

import math

from uneven.policy.balance.balancer import Balancer
from uneven.policy.core.views import BalanceView, Limits, Observation
from uneven_bench.balancers.rivals.dbs import Dbs
from uneven_bench.balancers.rivals.lbb import Lbb
from uneven_bench.balancers.rivals.omnilearn import OmniLearn

RIVALS: dict[str, type[Balancer]] = {"dbs": Dbs, "omnilearn": OmniLearn, "lbb": Lbb}
"""Their names, as the entry points of this distribution have them."""


def view_of(
    iteration: int, shares: tuple[int, ...], seen: tuple[Observation | None, ...], limits: Limits
) -> BalanceView:
    """Return the view of a rule that sees every worker: its newest speed is its forecast, NaN without one."""
    return BalanceView(
        iteration=iteration,
        global_batch=sum(shares),
        members=tuple(range(len(seen))),
        shares=shares,
        observed=seen,
        predicted_per_s=tuple(math.nan if one is None else one.speed_per_s for one in seen),
        limits=limits,
    )


__all__ = ["RIVALS", "Dbs", "Lbb", "OmniLearn", "view_of"]
