"""Rivals, written by us from their descriptions; docs/ideas/rivals.md tells what each description leaves open.

Those that are balancers have a name here. It is not a public one: they are there to be compared with.
"""

from uneven.balance.base import Balancer
from uneven.balance.rivals.dbs import Dbs
from uneven.balance.rivals.lbb import Lbb
from uneven.balance.rivals.omnilearn import OmniLearn
from uneven.registry import Registry

rivals: Registry[Balancer] = Registry("rival", Balancer)  # type: ignore[type-abstract]
"""Rival balancers by name."""

rivals.register("dbs", Dbs)
rivals.register("omnilearn", OmniLearn)
rivals.register("lbb", Lbb)

__all__ = ["Dbs", "Lbb", "OmniLearn", "rivals"]
