"""Synchronization policies: when replicas agree, and with which workers.

Each name is a policy with defaults. ``uneven.policy.core.registry`` defines the syntax of options and wrappers, as in
``"ssp:staleness=3"``, ``"shadow:easgd:alpha=0.3"`` or ``"shuffle:groups=digits,base=2:ma"``.
"""

from uneven.policy.sync.asp import ASP, SSP
from uneven.policy.sync.backup import Backup
from uneven.policy.sync.block import BMUF, DiLoCo
from uneven.policy.sync.bsp import BSP
from uneven.policy.sync.compatibility import (
    asks_ahead,
    by_server,
    carried,
    check_momentum,
    compatible,
    exact,
    pace_of,
    refused,
    seldom,
    served,
    unheeded,
    unsited,
)
from uneven.policy.sync.decoupled import Decoupled
from uneven.policy.sync.elastic import EASGD
from uneven.policy.sync.geo import Geo
from uneven.policy.sync.groups import Digits, Grid, Grouping, RandomGroups, Sites, groupings
from uneven.policy.sync.hierarchical import Hierarchical
from uneven.policy.sync.local import MA, AnyMerge, LocalSGD
from uneven.policy.sync.outlook import Outlook, first_plans, in_groups, outlook
from uneven.policy.sync.regional import Regional
from uneven.policy.sync.scout import Scout
from uneven.policy.sync.shadow import Shadow
from uneven.policy.sync.shuffle import Shuffle, ds_sync
from uneven.policy.sync.sparse import LargestEntries, SparseLocal
from uneven.policy.sync.sync_policy import (
    EvaluationModel,
    Facts,
    Pace,
    SyncPolicy,
    TunedPolicy,
    WrappingPolicy,
    policies,
)
from uneven.policy.sync.threaded import threaded

policies.register("bsp", BSP)
policies.register("asp", ASP)
policies.register("ssp", SSP)
policies.register("backup", Backup)
policies.register("local", LocalSGD)
policies.register("diloco", DiLoCo)
policies.register("decoupled", Decoupled)
policies.register("easgd", EASGD)
policies.register("ma", MA)
policies.register("bmuf", BMUF)
policies.register("blocks", AnyMerge)
policies.register("shuffle", ds_sync)
policies.register("hierarchical", Hierarchical)
policies.register("regional", Regional)
policies.register("sparse-local", SparseLocal)
policies.register("topk", LargestEntries)
policies.register("geo", Geo)
policies.register("scout", Scout)
policies.register("shadow", Shadow)

__all__ = [
    "ASP",
    "BMUF",
    "BSP",
    "EASGD",
    "MA",
    "SSP",
    "AnyMerge",
    "Backup",
    "Decoupled",
    "DiLoCo",
    "Digits",
    "Geo",
    "Grid",
    "Hierarchical",
    "LargestEntries",
    "LocalSGD",
    "RandomGroups",
    "Regional",
    "Scout",
    "Shadow",
    "Shuffle",
    "Sites",
    "SparseLocal",
]
