"""Trains on each emulated node for ``uneven bench worlds``: ``python -m … ITERATIONS GLOBAL_BATCH DATA [WIDTH]``."""

import sys

import torch

import uneven
from uneven.cli.demo.demo_training import loss_of, make_optimizer, network
from uneven.cluster.virtual.datasets import images
from uneven_bench.workloads.base import first

WIDTH = 64  # channels of the first convolution, unless another number is given


def main(iterations: int, global_batch: int, name: str, width: int = WIDTH) -> None:
    """Train for a number of iterations; balancer and journal come from the launcher."""
    torch.set_num_threads(1)
    data = images(name)
    with uneven.Session() as session:
        model = network(data, width)
        model, optimizer = session.setup(model, make_optimizer(model))
        for x, y in session.loader(first(data.train, iterations * global_batch), global_batch_size=global_batch):
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))
