"""Shards killed while workers train through them: lost updates, and the final accuracy."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from uneven.cluster.virtual.datasets import images
from uneven.runtime.messages.process import shard_process
from uneven.runtime.parameter_server import Client, ZmqLine, make_keys, table_of
from uneven_bench.harness.program import ended

WORKERS, SHARDS = 4, 2
BATCH, RATE, LEAD = 32, 0.5, 3
CLASSES = 10

Floats = npt.NDArray[np.float32]


def compare(steps: int, kills: int, data: str, say: Callable[[str, float], None], directory: Path) -> dict[str, Any]:
    """Train twice under SSP, with and without ``kills`` (SIGKILL, then a new, empty process).

    The model is a linear one with softmax, so that a worker is a thread with numpy and the shards are the heavier part.

    Result: ``kills``, ``steps`` of each worker, ``unaccounted`` (the greatest difference between the final copy and the
    start plus all pushed movements; rounding gives about 1e-6), ``accuracy`` and ``accuracy_undisturbed`` on held-out
    samples.
    """
    say("undisturbed", 0.0)
    calm = train(steps, 0, data, directory / "calm")
    say(f"{kills} kills", 0.4)
    killed = train(steps, kills, data, directory / "killed")
    return {
        "kills": kills,
        "steps": steps,
        "unaccounted": killed[1],
        "unaccounted_undisturbed": calm[1],
        "accuracy": killed[0],
        "accuracy_undisturbed": calm[0],
    }


def train(steps: int, kills: int, data: str, directory: Path) -> tuple[float, float]:
    """Return the accuracy on held-out samples, and the greatest movement that is unaccounted for."""
    make_keys(directory)
    found = images(data)
    x, y = _flat(found.train), np.asarray(found.train.tensors[1])
    start = [np.zeros(x.shape[1] * CLASSES, np.float32)]
    table = table_of([(x.shape[1], CLASSES)], "float32", SHARDS)
    shards = [shard_process(directory, shard, WORKERS) for shard in range(SHARDS)]
    done = [0] * WORKERS
    moved = [np.zeros(start[0].size) for _ in range(WORKERS)]
    with ended(shards):
        clients = [
            Client(rank, table, start, ZmqLine(directory, SHARDS, beat_s=0.1, refresh_s=0.5)) for rank in range(WORKERS)
        ]

        def work(rank: int) -> None:
            rng, mine = np.random.default_rng(rank), [start[0].copy()]
            for step in range(steps):
                some = rng.integers(len(x), size=BATCH)
                movement = -RATE * _gradient(mine[0].reshape(-1, CLASSES), x[some], y[some])
                moved[rank] += movement / WORKERS
                clock = max(0, step + 1 - LEAD)
                clients[rank].push_pull(step, [movement], scale=1 / WORKERS, clock=clock).into(mine)
                done[rank] = step + 1

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(WORKERS)]
        for thread in threads:
            thread.start()
        for number in range(kills):
            while min(done) < (number + 1) * steps // (kills + 1):
                time.sleep(0.005)
            shards[number % SHARDS].kill()
            shards[number % SHARDS] = shard_process(directory, number % SHARDS, WORKERS)
        for thread in threads:
            thread.join()
        end = [start[0].copy()]
        clients[0].pull(steps).into(end)
        for client in clients:
            client.close()
    right = (_flat(found.test) @ end[0].reshape(-1, CLASSES)).argmax(1) == np.asarray(found.test.tensors[1])
    return float(right.mean()), float(np.abs(end[0] - sum(moved)).max())


def _flat(some: Any) -> Floats:
    return np.asarray(some.tensors[0], np.float32).reshape(len(some), -1)


def _gradient(weights: Floats, x: Floats, y: npt.NDArray[np.int64]) -> Floats:
    scores = x @ weights
    scores -= scores.max(1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(y)), y] -= 1
    return np.asarray(x.T @ shares / len(y), np.float32).reshape(-1)
