"""The store of an elastic run in a process that starts no workers: ``uneven store``."""

import json
import signal
import time
from typing import Any

from uneven.errors import LaunchError
from uneven.runtime.jobs import Events, Stop
from uneven.runtime.launch.remote_workers import Others
from uneven.runtime.launch.rendezvous import keep_store
from uneven.runtime.membership_board import RUN, WORKERS, Board
from uneven.runtime.tcp_store import Store

_LOOK_EVERY_S = 1.0


def open_run(store: Store, founders: int, bounds: tuple[int, int], silence_s: float) -> dict[str, Any]:
    """Write into a new store the facts that a launcher needs to join, and return them; ``silence_s`` 0 means no
    limit."""
    # Founders start with equal parameters; workers that join later receive the state of a member.
    run = {"founders": founders, "elastic": f"{bounds[0]}:{bounds[1]}:{silence_s:g}"}
    store.set(RUN, json.dumps(run))
    return run


def keep(host: str, port: int, bounds: tuple[int, int], silence_s: float) -> None:
    """Keep the store of one elastic run until the run ends. Call it in the main thread. Port 0 is any free port.

    Raises ConfigError if the store cannot listen there, and LaunchError if all workers ended before the end of the
    training, or after a signal.
    """
    store, port = keep_store(host, port, "Give an address of this machine with --host, and a free port with --port")
    open_run(store, bounds[0], bounds, silence_s)
    where = f"{host}:{port}"
    print(f"uneven: the run's store is at {where}; start workers with `uneven run --join {where} SCRIPT`", flush=True)
    board = Board(store)
    others = Others(board, silence_s)
    with Events() as events, Stop(lambda number: events.wake()) as stop:
        while not stop.requests and (board.count(WORKERS) == 0 or others.there(time.monotonic())):
            events.wait(_LOOK_EVERY_S)
    if stop.requests:
        there = ", ".join(map(str, others.there(time.monotonic())))
        lost = f", and worker {there} cannot continue without the store" if there else ""
        raise LaunchError(f"stopped by {signal.Signals(stop.number).name}{lost}", 128 + stop.number)
    if board.look("over") != "":
        raise LaunchError("all workers ended before the training did: resume from a checkpoint")
