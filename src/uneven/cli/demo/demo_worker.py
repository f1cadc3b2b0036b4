"""One worker of the demo. Both ways train the same network on the same samples in the same order.

``plain`` is a usual script with DistributedDataParallel and equal batches, plus timers, so that its run can be analysed
like any other. ``balanced`` is the same loop with the lines that uneven needs.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from uneven.cli.demo.demo_training import FixedSampler, ReadyMark, accuracy, loss_of, make_optimizer, network
from uneven.cluster.virtual.datasets import ImageData, images
from uneven.policy.core.pace import Pace
from uneven.policy.core.records import StepRecord
from uneven.policy.core.run_config import RunConfig
from uneven.run.context.scribe import Scribe
from uneven.run.lines.group_lines import sum_now
from uneven.run.session import Session
from uneven.run.start.connect import versions
from uneven.run.start.heap import keep_freed_memory
from uneven.runtime import rundir
from uneven.runtime.world import discover

GLOBAL_BATCH = 256
WIDTH = 64


def plain(data: ImageData, run: Path, epochs: int) -> None:
    """Train with DistributedDataParallel on equal parts of the global batch; the allocator is set as by a session."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    scribe = Scribe(discover(), run, RunConfig(balance="even"), versions(), Pace.TOGETHER)
    model = network(data, WIDTH)
    keep_freed_memory(model)
    mark = ReadyMark(model)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    each = GLOBAL_BATCH // size
    # Whole global batches only, so that both ways train on the same samples.
    samples = len(data.train) // GLOBAL_BATCH * GLOBAL_BATCH
    loader = DataLoader(data.train, batch_sampler=FixedSampler(samples, (each,) * size, rank))
    ready()
    scribe.plan(epochs * (samples // GLOBAL_BATCH))
    iteration = 0
    for epoch in range(epochs):
        ended_s = time.perf_counter()
        for x, y in loader:
            begun_s = time.perf_counter()
            loss = loss_of(ddp, x, y)
            loss.backward()
            # DDP's exchange overlaps with the backward pass; the part after the last local gradient counts as
            # communication.
            exchanged_s = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
            scribe.iteration = iteration
            data_s, ended_s = begun_s - ended_s, time.perf_counter()
            exchange_s = exchanged_s - mark.ready_s
            scribe.write(
                StepRecord(
                    rank=rank,
                    iteration=iteration,
                    epoch=epoch,
                    batch=len(x),
                    global_batch=GLOBAL_BATCH,
                    data_s=data_s,
                    compute_s=ended_s - begun_s - exchange_s,
                    exchange_s=exchange_s,
                    control_s=0.0,
                    ended_at_s=time.time(),
                )
            )
            if rank == 0:
                scribe.scalar("loss", loss.item())
            iteration += 1
    finish(scribe.scalar, model, data, rank)
    scribe.close()
    dist.destroy_process_group()


def balanced(data: ImageData, run: Path, epochs: int) -> None:
    """Train the same loop with the three lines that uneven needs."""
    session = Session(run_dir=run)
    model = network(data, WIDTH)
    model, optimizer = session.setup(model, make_optimizer(model), gradient_as_bucket_view=True)
    samples = len(data.train) // GLOBAL_BATCH * GLOBAL_BATCH
    dataset = torch.utils.data.Subset(data.train, range(samples))
    loader = session.loader(dataset, global_batch_size=GLOBAL_BATCH, epochs=epochs)
    ready()
    for _ in range(epochs):
        for x, y in loader:
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if session.rank == 0:
                session.log(loss=loss.item())
    finish(lambda name, value: session.log(**{name: value}), model, data, session.rank)
    session.close()


def coming() -> None:
    """Announce that this worker will call :func:`ready`."""
    world = discover()
    if world.run_directory is not None:
        rundir.mark_coming(world.run_directory, world.rank)


def ready() -> None:
    world = discover()
    if world.run_directory is not None:
        rundir.mark_ready(world.run_directory, world.rank)
    if not world.alone:
        sum_now(torch.zeros(1), None)  # so that all start at the same time


def finish(log: Callable[[str, float], None], model: nn.Module, data: ImageData, rank: int) -> None:
    if rank == 0:
        log("accuracy", accuracy(model, data.test))


if __name__ == "__main__":
    # Each worker has a fraction of a core, so more threads would only compete.
    torch.set_num_threads(1)
    coming()
    way, run_directory, data_name, epoch_count = sys.argv[1:]
    {"plain": plain, "balanced": balanced}[way](images(data_name), Path(run_directory), int(epoch_count))
