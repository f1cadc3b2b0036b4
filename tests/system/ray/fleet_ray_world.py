"""Ensembles and a search on two nodes of a Ray cluster with one CPU slot each; one of the nodes is lost."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch
from fleet_ray_members import EPOCHS, RATES, asked, options
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_world import connected, nodes

import fleet_members as members
import search_functions
from uneven import search
from uneven.errors import ConfigError
from uneven.fleet.engine.fleet_options import RunSnapshot
from uneven.fleet.engine.fleet_run import run
from uneven.fleet.stream.sample_ring import Field
from uneven.fleet.stream.sample_store import ChunksHandle, KeptChunks, store_in
from uneven.runtime.jobs.ray import ActorConnection
from uneven.runtime.jobs.ray import Cluster as Place

BEFORE_LOSS = 2 * EPOCHS + 1
"""Passes: the last two are in the middle of their training."""


def refusals(folder: Path) -> dict[str, str]:
    """What is refused, in words."""
    said = {}
    os.chdir(folder)
    for what, devices, directory, how in (
        ("many", 3, folder / "many", options()),
        ("names", ["cuda:0"], folder / "names", options()),
        ("gpus", ["cuda"], folder / "gpus", options()),
        ("together", 2, folder / "together", replace(options(), together=True)),
        ("storage", 2, Path("/proc/self/cwd/elsewhere"), options()),
    ):
        try:
            run(asked(), devices, directory, how, lambda moment: None, "ray")
        except ConfigError as error:
            said[what] = str(error)
    with closing(Place(1)) as place:
        try:
            store_in(place, (Field("float32", (2**20,)),), slots=8, chunk=8)
        except ConfigError as error:
            said["buffer"] = str(error)
    return said


def trained(folder: Path, there: Any) -> dict[str, Any]:
    """All of them; a preprocessor is killed early, and a node when the last two have trained for one epoch."""
    killed: list[int] = []
    struck: dict[str, int] = {}

    def strike(moment: RunSnapshot) -> None:
        makers = [pid for pid in moment.processes[""] if pid]
        if makers and not killed and moment.ledger.ready > 1:
            killed.append(makers[0])
            os.kill(makers[0], signal.SIGKILL)
        if moment.state.passes == BEFORE_LOSS and not struck:
            struck.update({name: pids[0] for name, pids in moment.processes.items() if name})
            there.remove_node(last, allow_graceful=False)
            while all(_lives(pid) for pid in struck.values()):
                time.sleep(0.05)

    last = nodes(there, 2)[-1]
    far = NodeAffinitySchedulingStrategy(last.node_id, soft=False)
    lost = made.options(scheduling_strategy=far).remote()  # type: ignore[attr-defined]
    ray.wait([lost], fetch_local=False)
    everybody = replace(asked(), members={**asked().members, "team": members.plain})
    needs = replace(options(), rates={**RATES, "team": [0.0, 50.0]})
    state = run(everybody, 2, folder, needs, strike, "ray")
    return {
        "killed": len(killed), "struck": sorted(struck), "plan": state.plan, "why": state.members["team"].why,
        "told": {name: (one.status, len(one.epochs), one.deaths) for name, one in state.members.items()},
        "chunk": a_chunk_is_lost(lost),
    }  # fmt: skip


def _lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@ray.remote(num_cpus=0, max_retries=0)
def made(first: int = 0) -> list[np.ndarray[Any, Any]]:
    """A chunk of four samples, too large to travel in a message."""
    return [np.repeat(np.arange(first, first + 4)[:, None], 20_000, axis=1)]


def a_chunk_is_lost(lost: Any) -> dict[str, Any]:
    """What a reader does that finds a chunk gone with a machine, and what the engine makes of it."""
    layout = (Field("int64", (20_000,)),)
    kept = KeptChunks(ChunksHandle(layout, 2, 4))
    line = ActorConnection()
    chunks = kept.handle(writable=False).open(line)
    kept.keep(0, lost)
    kept.keep(1, made.remote(4))
    chunks.arrived(kept.found(0, 2))
    line.inbox.put(("ready", 2, {0: (2, made.remote())}))
    batch = chunks.batch(2, 4)[0][:, 0].tolist()
    asked_for = line.outbox.get()[0]
    heard = [kept.lost(*asked_for[1:]), kept.lost(*asked_for[1:])]
    return {"batch": batch, "asked": asked_for, "heard": heard, "found": sorted(kept.found(0, 2))}


def searched(folder: Path) -> list[tuple[int, float, float, str]]:
    """Trials of a search on both nodes: number, best metric, training and status of each."""
    result = search.run(
        search_functions.climbs, {"rate": search.loguniform(1e-3, 0.3)}, metric="loss", mode="min", trials=3, max_t=3,
        devices=2, engine="ray", directory=folder, progress=False,
    )  # fmt: skip
    return sorted((row.number, row.metric, row.t, row.status) for row in result.rows)


def play(there: Any, folder: Path) -> dict[str, Any]:
    """Try what is refused, search, and train with a loss."""
    torch.set_num_threads(1)
    nodes(there, 2)
    with connected(there):
        return {
            "refusals": refusals(folder), "searched": searched(folder / "search"),
            "trained": trained(folder / "there", there),
        }  # fmt: skip
