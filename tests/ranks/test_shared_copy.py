"""Real workers train a real model through shards in processes of their own, one of which is killed in mid-run."""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.nn.functional as F

from uneven.cluster.virtual.datasets import digits
from uneven.runtime.jobs import Command, How
from uneven.runtime.messages.process import shard_process
from uneven.runtime.parameter_server import Client, ZmqLine, make_keys
from uneven.runtime.parameter_server.pure.partition import table_of
from uneven.testing.ranks import RankContext, ranks

WORKERS, SHARDS, STEPS, BATCH = 2, 2, 16, 36
FREE = 8  # steps before a shard is killed
RATE = 0.1


def batches(rank: int | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of one worker, or of all together."""
    images, y = digits().train.tensors
    x = images.flatten(1)
    each = [x[k * WORKERS * BATCH :][: WORKERS * BATCH] for k in range(20)]
    right = [y[k * WORKERS * BATCH :][: WORKERS * BATCH] for k in range(20)]
    mine = slice(None) if rank is None else slice(rank, None, WORKERS)
    return [(each[k % 20][mine], right[k % 20][mine]) for k in range(STEPS)]


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))


def step(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()


def alone(steps: int) -> torch.nn.Module:
    net = model()
    for x, y in batches(None)[:steps]:
        step(net, x, y)
    return net


def flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach()


def come(directory: str, what: str) -> list[Path]:
    """The files of all workers, once they are there."""
    paths = [Path(f"{directory}/{what}-{rank}.pt") for rank in range(WORKERS)]
    while not all(path.exists() for path in paths):
        time.sleep(0.01)
    return paths


@ranks(WORKERS, join=False)
def test_without_staleness_it_is_plain_sgd_and_killed_shards_lose_no_update(me: RankContext, tmp_path: str) -> None:
    torch.set_num_threads(1)
    directory = Path(tmp_path) / "server"
    shards: list[Command] = []
    if me.rank == 0:
        make_keys(directory)
        shards = [shard_process(directory, shard, WORKERS) for shard in range(SHARDS)]
    while not (directory / "shard-1.address").exists():
        time.sleep(0.02)
    net = model()
    parameters = list(net.parameters())
    arrays = [one.data.numpy().reshape(-1) for one in parameters]
    start, moved = flat(net), torch.zeros_like(flat(net))
    line = ZmqLine(directory, SHARDS, beat_s=0.05, refresh_s=0.5)
    table = table_of([tuple(one.shape) for one in parameters], "float32", SHARDS)
    client = Client(me.rank, table, arrays, line)
    for number, (x, y) in enumerate(batches(me.rank)):
        before = [array.copy() for array in arrays]
        step(net, x, y)
        movement = [new - old for new, old in zip(arrays, before, strict=True)]
        moved += torch.cat([torch.from_numpy(one) for one in movement]) / WORKERS
        reply = client.push_pull(number, movement, scale=1 / WORKERS, clock=number + 1)  # SSP with a bound of 0
        if me.rank == 0 and number == FREE:
            # Whose answer to the step before dies with the shard gets a copy that may hold a step more.
            come(tmp_path, "exact")
            shards[number % SHARDS].kill()
            shards[number % SHARDS] = shard_process(directory, number % SHARDS, WORKERS)  # it knows nothing
        reply.into(arrays)
        if number == FREE - 1:
            torch.testing.assert_close(flat(net), flat(alone(FREE)), rtol=1e-4, atol=1e-6)
            Path(f"{tmp_path}/exact-{me.rank}.pt").touch()
    client.pull(STEPS).into(arrays)
    torch.save(moved, f"{tmp_path}/moved-{me.rank}.new")
    Path(f"{tmp_path}/moved-{me.rank}.new").rename(f"{tmp_path}/moved-{me.rank}.pt")
    everybody = sum(torch.load(path) for path in come(tmp_path, "moved"))
    torch.testing.assert_close(flat(net), start + everybody, rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(flat(net), flat(alone(STEPS)), rtol=1e-2, atol=1e-3)
    client.close()
    for shard in shards:
        assert shard.end().how is How.ENDED
