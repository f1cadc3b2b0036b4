"""Skewed data: who has which labels, how skewed that is, and how tightly sites must agree so that it does not matter.

A :class:`Partition` says which samples lie at which site, ``label_skew`` how unlike the sites are, a :class:`Tuner`
finds the setting of a policy that sends least while models do as well away as at home.
"""

from uneven.skew.measure import label_skew
from uneven.skew.objective import Objective
from uneven.skew.partition import Partition, partitions
from uneven.skew.tuner import Annealing, HillClimbing, StochasticHillClimbing, Tuner, tuners

__all__ = [
    "Annealing",
    "HillClimbing",
    "Objective",
    "Partition",
    "StochasticHillClimbing",
    "Tuner",
    "label_skew",
    "partitions",
    "tuners",
]
