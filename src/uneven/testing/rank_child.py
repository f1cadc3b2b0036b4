"""Run bodies of :mod:`uneven.testing.ranks` in a child process."""

import faulthandler
import importlib
import json
import os
import queue
import random
import signal
import sys
import threading
import traceback
from datetime import timedelta
from types import TracebackType
from typing import Any

from uneven.runtime.system import LOOPBACK_INTERFACE
from uneven.runtime.tcp_store import tcp_store
from uneven.testing.ranks import RankContext


def main(replies: int) -> None:
    """Serve until the standard input closes, which also shows that the parent has ended."""
    os.set_inheritable(replies, False)
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(commands,), name="commands", daemon=True).start()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    def answer(kind: str, **rest: Any) -> None:
        os.write(replies, json.dumps({"kind": kind, **rest}).encode() + b"\n")

    def report(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        answer("failed", text="".join(traceback.format_exception(kind, error, where)))
        sys.stdout.flush()
        os._exit(1)

    # An exception ends the process, so that the system closes its connections and waiting peers fail immediately.
    sys.excepthook = report

    store = None
    answer("done")
    while True:
        command = commands.get()
        if command["op"] == "store":
            limit = timedelta(seconds=command["timeout_s"])
            store = tcp_store("127.0.0.1", 0, is_master=True, timeout=limit, wait_for_workers=False)
            answer("done", value=store.port)
        else:
            result = json.dumps(_run(command))
            sys.stdout.flush()
            answer("done", value=json.loads(result))


def _read(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    # Not sys.stdin: its lock would be held here when a data loader forks a reader, which then closes sys.stdin.
    with open(os.dup(0), encoding="utf-8") as lines:
        for line in lines:
            commands.put(json.loads(line))
    os._exit(0)


def _run(command: dict[str, Any]) -> Any:
    import numpy
    import torch
    import torch.distributed as dist

    from uneven.run.lines.group_lines import sum_now

    sys.path[:] = command["path"]
    os.chdir(command["directory"])
    os.environ.clear()
    os.environ.update(command["environment"], **_launcher_variables(command))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    if command["join"]:
        dist.init_process_group("gloo", timeout=timedelta(seconds=command["timeout_s"]))
        # A worker whose connections are open could finish the body and exit while others still connect to it.
        sum_now(torch.zeros(1), None)
    found = getattr(importlib.import_module(command["module"]), command["name"])
    body = getattr(found, "rank_body", found)
    result = body(RankContext(command["rank"], command["size"]), *command["args"], **command["kwargs"])
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def _launcher_variables(command: dict[str, Any]) -> dict[str, str]:
    return {
        "RANK": str(command["rank"]),
        "WORLD_SIZE": str(command["size"]),
        "LOCAL_RANK": str(command["rank"]),
        "LOCAL_WORLD_SIZE": str(command["size"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(command["port"]),
        # The store exists already, on a port that the system chose: rank 0 must join it and not open one.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": command["environment"].get("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE),
    }
