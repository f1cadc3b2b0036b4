"""Balancers as objects: ``Session(balance=uneven.balance.LbBsp())``. By its name it is ``balance="lb-bsp"``."""

from uneven.policy.balance import *  # noqa: F403
from uneven.policy.balance import __all__ as __all__
