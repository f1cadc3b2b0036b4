"""Balancers from the literature, written from their descriptions, to compare ours with.

``docs/ideas/rivals.md`` lists the gaps of each description, and the results. ``uneven plan`` tries only the rivals
named.
"""

from uneven.policy.balance.balancer import Balancer
from uneven_bench.balancers.rivals.dbs import Dbs
from uneven_bench.balancers.rivals.lbb import Lbb
from uneven_bench.balancers.rivals.omnilearn import OmniLearn

RIVALS: dict[str, type[Balancer]] = {"dbs": Dbs, "omnilearn": OmniLearn, "lbb": Lbb}
"""Their names, as the entry points of this distribution have them."""

__all__ = ["RIVALS", "Dbs", "Lbb", "OmniLearn"]
