"""For tests, of this package and of plug-ins written elsewhere.

``ranks`` runs a test's body in several real processes. ``contracts`` holds the suites that a new predictor, balancer,
synchronisation policy or transport has to pass, ``merges`` that of a merge, ``search`` those of schedulers and
searchers. These need pytest and are imported by name (``uneven.testing.contracts``), so that nothing here asks for it.
``parts`` has workers for a part, without a session.
"""

from uneven.testing.ranks import RankContext, RankFailure, kept_pids, pool_pids, ranks, run_ranks, stop_pool

__all__ = ["RankContext", "RankFailure", "kept_pids", "pool_pids", "ranks", "run_ranks", "stop_pool"]
