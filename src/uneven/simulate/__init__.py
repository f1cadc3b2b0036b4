"""A cluster in virtual time: the policies, balancers and records of a real run, without machines. Pure.

``simulate(Scenario(spec=…, balancer=…, policy=…), sink)`` runs it. The sink may be a list's ``append`` or
``journal.ManyWriters.write``. :mod:`uneven.simulate.costs` learns the costs from the journal of another run.
"""

from uneven.simulate.arithmetic import Arithmetic
from uneven.simulate.costs import RecordedCosts, costs_from_journal, described, with_costs
from uneven.simulate.preconditioning import OwnOutcome
from uneven.simulate.speeds import recorded_shares, with_recorded_speeds
from uneven.simulate.stream import streamed
from uneven.simulate.table_servers import TableOutcome, TableServers
from uneven.simulate.tally import Outcome, WorkerOutcome
from uneven.simulate.world import Scenario, Sink, simulate

__all__ = [
    "Arithmetic",
    "Outcome",
    "OwnOutcome",
    "RecordedCosts",
    "Scenario",
    "Sink",
    "TableOutcome",
    "TableServers",
    "WorkerOutcome",
    "costs_from_journal",
    "described",
    "recorded_shares",
    "simulate",
    "streamed",
    "with_costs",
    "with_recorded_speeds",
]
