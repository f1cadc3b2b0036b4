"""Balancers from the literature, written from their descriptions, to compare ours with. Pure.

``docs/ideas/rivals.md`` says what each description leaves open, and how they do. ``uneven plan`` tries them only where
they are named.
"""

from uneven.balance.base import Balancer
from uneven.balance.rivals.dbs import Dbs
from uneven.balance.rivals.lbb import Lbb
from uneven.balance.rivals.omnilearn import OmniLearn

RIVALS: dict[str, type[Balancer]] = {"dbs": Dbs, "omnilearn": OmniLearn, "lbb": Lbb}
"""Their names; registered among the balancers."""

__all__ = ["RIVALS", "Dbs", "Lbb", "OmniLearn"]
