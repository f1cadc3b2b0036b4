"""A plan's steps of the unequal workers, from their measured costs, and its error."""

from typing import Any

from uneven.cluster.pure.describe.parse import preconditioner_from_toml
from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.policy.balance import balancers
from uneven.policy.sync import policies

_PERIOD_S = 0.01  # in which control groups deal out processor time
_ITERATIONS = 140


def planned(told: dict[str, Any], cores: tuple[float, ...], isolated: bool) -> dict[str, Any]:
    """Return seconds of a step in virtual time, by arm, and their error. ``told``: the workers' result; ``isolated``:
    they had separate control groups."""
    nodes = tuple(Node(name=f"node{rank}", cores=own, period_s=_PERIOD_S * isolated) for rank, own in enumerate(cores))
    workload = Workload(global_batch=sum(told["shares"]), **told["costs"])
    found: dict[str, Any] = {"step_s": {}, "error": {}, "shares": {}}
    for arm, balance in (("ours", "lb-bsp"), ("n3", "even")):
        one = preconditioner_from_toml(told["described"][arm], "measured")
        spec = ClusterSpec(name="unequal", nodes=nodes, workload=workload, preconditioner=one)
        balancer, bsp = balancers.resolve(balance), policies.resolve("bsp")
        scenario = Scenario(spec=spec, balancer=balancer, policy=bsp, iterations=_ITERATIONS)
        ends_s: dict[int, float] = {}

        def ended(record: Any, ends_s: dict[int, float] = ends_s) -> None:
            if record.kind == "step":
                ends_s[record.iteration] = record.ended_at_s

        outcome = simulate(scenario, ended)
        settled = _ITERATIONS - 40
        found["step_s"][arm] = (ends_s[_ITERATIONS - 1] - ends_s[settled - 1]) / 40  # four periods
        found["error"][arm] = found["step_s"][arm] / told["step_s"][arm] - 1.0
        found["shares"][arm] = [one.batch for one in outcome.workers]
    found["gain"] = found["step_s"]["n3"] / found["step_s"]["ours"]
    return found
