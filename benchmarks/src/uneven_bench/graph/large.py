"""A graph of a million vertices and twenty million edges: time of the cut, memory of the training."""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from uneven_bench.harness.program import program

VERTICES, EDGES, WIDTH, CLASSES, STEPS = 1_000_000, 20_000_000, 64, 16, 3


def large() -> dict[str, float]:
    """Return ``cut_s`` of ne at four parts without writing, ``step_s`` in one process, ``peak_gb`` of all that."""
    told: dict[str, float] = json.loads(program(__name__).splitlines()[-1])
    return told


def _measured() -> dict[str, Any]:
    import resource

    import torch
    import torch.nn.functional as F
    from torch import nn

    from uneven import graph
    from uneven.graph.cutting import cut
    from uneven.graph.edges import edges_of
    from uneven_bench.graph.graphs import drawn

    index = drawn(VERTICES, EDGES)
    began_s = time.perf_counter()
    cut(edges_of(index, VERTICES), "ne", (0.25,) * 4, 0, 10.0)
    found: dict[str, Any] = {"cut_s": time.perf_counter() - began_s}
    draw = torch.Generator().manual_seed(1)
    tensors = {
        "x": torch.randn(VERTICES, WIDTH, generator=draw),
        "y": torch.randint(0, CLASSES, (VERTICES,), generator=draw),
    }
    with tempfile.TemporaryDirectory(prefix="uneven-graph-") as folder:
        graph.partition(index, VERTICES, path=Path(folder, "parts"), parts=1, tensors=tensors)
        g = graph.load(Path(folder, "parts"), rank=0, size=1)
        x, y = g.x, g.y
        net = nn.ModuleList([graph.SAGEConv(WIDTH, 64), graph.SAGEConv(64, CLASSES)])
        optimizer = torch.optim.Adam(net.parameters())
        taken = []
        for _ in range(STEPS):
            began_s = time.perf_counter()
            optimizer.zero_grad()
            g.loss(F.cross_entropy, net[1](F.relu(net[0](x, g)), g), y).backward()
            optimizer.step()
            taken.append(time.perf_counter() - began_s)
    found["step_s"] = min(taken)
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return found


if __name__ == "__main__":
    print(json.dumps(_measured()))
