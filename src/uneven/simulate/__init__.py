"""A cluster in virtual time: the same policies, balancers and records as in a real run, and no machine. Pure.

``simulate(Scenario(spec=…, balancer=…, policy=…), sink)`` plays it; :mod:`uneven.simulate.store` writes the records
as a journal, :mod:`uneven.simulate.costs` learns the costs from one.
"""

from uneven.simulate.arithmetic import Arithmetic
from uneven.simulate.tally import Outcome, WorkerOutcome
from uneven.simulate.world import Scenario, Sink, simulate

__all__ = ["Arithmetic", "Outcome", "Scenario", "Sink", "WorkerOutcome", "simulate"]
