"""One worker of ``uneven bench heap``: trains for a turn whenever a line comes in, and says what it took."""

from __future__ import annotations

import json
import resource
import sys
import time

import torch

from uneven.run.start.heap import keep_freed_memory
from uneven_bench.workloads.named import workload


def main(way: str, batch: int, steps: int, data: str) -> None:
    """Until the pipe is closed."""
    torch.set_num_threads(1)
    work = workload("images", data)
    model = work.make()
    if way == "kept":
        keep_freed_memory(model)
    optimizer = work.optimizer(model.parameters())
    x, y = (tensor[torch.arange(batch) % len(tensor)] for tensor in work.train.tensors)
    for _ in sys.stdin:
        began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(steps):
            work.loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        told = {"step_s": (time.perf_counter() - began_s) / steps, "faults": faults / steps}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
