"""Joins the other workers: process group, line for the slow loop, comparison of the ranks at start."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import uneven
from uneven.config import RunConfig, fields
from uneven.errors import ConfigError, ConflictError, PeerError
from uneven.transport.base import Transport
from uneven.transport.collective import CollectiveTransport
from uneven.transport.rollcall import RollCall
from uneven.transport.threads import Hub
from uneven.world import World


@dataclass(slots=True)
class Connection:
    """This worker's lines to the others.

    Attributes:
        transport: for the slow loop.
        roll: names the missing after a failure; None for a worker that is alone.
        owns_group: whether the default process group was made here and must be destroyed here.
    """

    transport: Transport
    roll: RollCall | None
    owns_group: bool

    def close(self) -> None:
        """Leave the others."""
        self.transport.close()
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self.owns_group = False


def connect(world: World, timeout_s: float) -> Connection:
    """Join the process group, the one that exists (Ray Train, the user) or a new one.

    Raises:
        PeerError: the others could not be reached in time.
        ConfigError: the group that exists is not this world.
    """
    if world.alone:
        return Connection(Hub(1).endpoint(0), None, owns_group=False)
    owns = not dist.is_initialized()
    if owns:
        _join(world, timeout_s)
    elif (dist.get_rank(), dist.get_world_size()) != (world.rank, world.size):
        raise ConfigError(
            f"the process group says rank {dist.get_rank()} of {dist.get_world_size()}, the launcher's variables "
            f"say rank {world.rank} of {world.size}: start the script with one launcher only"
        )
    roll = RollCall(dist.distributed_c10d._get_default_store(), world.rank, world.size, timeout_s)
    return Connection(CollectiveTransport(timeout_s, roll), roll, owns_group=owns)


def _join(world: World, timeout_s: float) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    except (RuntimeError, ValueError) as error:
        raise PeerError(
            f"rank {world.rank} of {world.size} could not join the others within {timeout_s:g} s ({error}): is every "
            f"rank started, and does MASTER_ADDR:MASTER_PORT lead to rank 0's machine? A port in use needs another "
            f"--master-port"
        ) from error


def compare(transport: Transport, what: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Give ``what`` to everybody and see that all ranks say the same.

    Keys that begin with an underscore may differ; they are passed on all the same.

    Returns:
        What each rank said, by rank.

    Raises:
        ConflictError: naming the key, the ranks and both values.
    """
    said = [json.loads(text) for text in transport.gather_text(json.dumps(what, sort_keys=True))]
    for rank, other in enumerate(said):
        for key in sorted(set(said[0]) | set(other)):
            if not key.startswith("_") and said[0].get(key) != other.get(key):
                raise ConflictError(
                    f"{where}: ranks differ in {key}: rank 0 has {said[0].get(key)!r}, rank {rank} has "
                    f"{other.get(key)!r}; start every rank with the same script, settings and versions"
                )
    return said


def identity(config: RunConfig) -> dict[str, Any]:
    """What must be the same on every rank before anything starts."""
    return {**fields(config), **versions(), "code": _code_digest()}


def versions() -> dict[str, str]:
    """Versions of everything that takes part in a decision."""
    return {"uneven": uneven.__version__, "torch": str(torch.__version__), "numpy": np.__version__}


def _code_digest() -> str:
    root = Path(uneven.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
