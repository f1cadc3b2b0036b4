"""Test this package, and plug-ins of other packages.

``ranks`` runs a test's body in several real processes. ``contracts`` has the test suites for new predictors, balancers,
synchronization policies and transports, ``merges`` the one for merges, ``search`` those for schedulers and searchers.
``parts`` has workers for a part, without a session. ``staging`` sends tensors of a CPU the way of a GPU's.
"""

# The suites need pytest, so they are imported as `uneven.testing.contracts` and not from here.
from uneven.testing.ranks import RankContext, RankFailure, kept_pids, pool_pids, ranks, run_ranks, stop_pool

__all__ = ["RankContext", "RankFailure", "kept_pids", "pool_pids", "ranks", "run_ranks", "stop_pool"]
