"""Skewed data: partitions of samples over sites, measures of their skew, and a search for how tightly sites must agree.

A :class:`Partition` assigns samples to sites, and ``label_skew`` measures the difference between sites. A
:class:`Tuner` finds the policy setting that sends least while models keep their accuracy at other sites.
"""

from uneven.policy.skew.partition import Partition, label_skew, partitions
from uneven.policy.skew.tuner import Annealing, HillClimbing, Objective, StochasticHillClimbing, Tuner, tuners

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
