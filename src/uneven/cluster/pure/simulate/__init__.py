"""A cluster in virtual time: the policies, balancers and records of a real run, without machines.

``simulate(Scenario(spec=…, balancer=…, policy=…), sink)`` runs it. The sink may be a list's ``append`` or
``journal.ManyWriters.write``. :mod:`uneven.cluster.pure.simulate.costs` learns the costs from the journal of another
run.
"""

from uneven.cluster.pure.simulate.arithmetic import Arithmetic
from uneven.cluster.pure.simulate.costs import (
    RecordedCosts,
    costs_from_journal,
    described,
    recorded_shares,
    with_costs,
    with_recorded_speeds,
)
from uneven.cluster.pure.simulate.preconditioning import OwnOutcome
from uneven.cluster.pure.simulate.table_servers import TableOutcome, TableServers
from uneven.cluster.pure.simulate.tally import Outcome, WorkerOutcome
from uneven.cluster.pure.simulate.virtual_world import Scenario, Sink, simulate, streamed
