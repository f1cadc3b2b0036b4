"""The balancer and policy that fit a cluster: simulated combinations, ranked, with reasons."""

from uneven.cluster.pure.plan.combine import Choice, LeftOut, combinations, default_syncs
from uneven.cluster.pure.plan.plan_figures import CombinationResult, Figures, TrainingOutcome, played
from uneven.cluster.pure.plan.rank import Plan, Row, ranked
from uneven.cluster.pure.plan.reasons import findings, preconditioning, reason

__all__ = [
    "Choice",
    "CombinationResult",
    "Figures",
    "LeftOut",
    "Plan",
    "Row",
    "TrainingOutcome",
    "combinations",
    "default_syncs",
    "findings",
    "played",
    "preconditioning",
    "ranked",
    "reason",
]
