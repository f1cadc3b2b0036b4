"""When, and with whom, replicas agree. Pure."""

from uneven.sync.base import Evaluated, SyncPolicy, policies
from uneven.sync.bsp import BSP

policies.register("bsp", BSP)

__all__ = ["BSP", "Evaluated", "SyncPolicy", "policies"]
