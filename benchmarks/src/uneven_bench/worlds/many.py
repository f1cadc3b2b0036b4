"""A program that simulates many workers and prints its time and memory: ``python -m … WORKERS ITERATIONS``."""

import json
import resource
import sys
import time

from uneven.cluster.pure.describe.spec import ClusterSpec, Node, Workload
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.policy.balance import balancers
from uneven.policy.sync import BSP

_KINDS = (1.0, 0.8, 0.5, 0.4)  # cores of the nodes, by turns
_SAMPLES_EACH = 64


def main(workers: int, iterations: int) -> None:
    """Simulate balanced BSP on unequal nodes without jitter or limits on links."""
    nodes = tuple(Node(name=f"node{rank}", cores=_KINDS[rank % len(_KINDS)]) for rank in range(workers))
    spec = ClusterSpec(name="many", nodes=nodes, workload=Workload(global_batch=_SAMPLES_EACH * workers))
    started_s = time.perf_counter()
    outcome = simulate(Scenario(spec=spec, balancer=balancers.resolve("lb-bsp"), policy=BSP(), iterations=iterations))
    took_s = time.perf_counter() - started_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"took_s": took_s, "peak_bytes": peak, "events_per_s": outcome.happened / took_s}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
