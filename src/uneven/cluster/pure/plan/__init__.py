"""The balancer and policy that fit a cluster: simulated combinations, ranked, with reasons."""

from uneven.cluster.pure.plan.combine import Choice, LeftOut, combinations, default_syncs, enough_iterations
from uneven.cluster.pure.plan.plan_figures import CombinationResult, Figures, NoExchangePlayed, TrainingOutcome, played
from uneven.cluster.pure.plan.prices import Allowance, Price, Spot, price, priced, spot
from uneven.cluster.pure.plan.rank import Plan, Row, ranked
from uneven.cluster.pure.plan.reasons import doubts, findings, preconditioning, reason
