"""The environment of a launcher's workers."""

import os
from pathlib import Path

from uneven.errors import ConfigError
from uneven.runtime.jobs.processes import usable_cores
from uneven.runtime.launch.launch_spec import Launch
from uneven.runtime.system import LOOPBACK_INTERFACE
from uneven.runtime.world import READY_VARIABLE, RUN_VARIABLE, SHARE_VARIABLE

_SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"  # torch's own; 30 s there
_SHUTDOWN_WITHIN_S = "10"


def shutdown_within_s() -> int:
    """Return the grace period, in seconds, between asking a worker to end and killing it."""
    text = os.environ.get(_SHUTDOWN_VARIABLE, _SHUTDOWN_WITHIN_S)
    if not text.isdigit():
        raise ConfigError(f"{_SHUTDOWN_VARIABLE}={text!r} must be a whole number of seconds")
    return int(text)


def variables(launch: Launch, count: int, run_directory: Path | None) -> dict[str, str]:
    """Return the variables added to a worker's environment, on top of the user's and torch's."""
    variables = {} if run_directory is None else {RUN_VARIABLE: str(run_directory)}
    if launch.wait_ready:
        variables[READY_VARIABLE] = "1"
    if launch.shares:
        variables[SHARE_VARIABLE] = ",".join(map(repr, launch.shares))
    if "OMP_NUM_THREADS" not in os.environ:
        # torch would start one thread per core in each worker; more threads than cores slow all of them down.
        variables["OMP_NUM_THREADS"] = str(1 if launch.shares else max(1, usable_cores() // count))
    own = launch.here is not None and launch.local_addr is None
    if own and LOOPBACK_INTERFACE and "GLOO_SOCKET_IFNAME" not in os.environ:
        # gloo would resolve the host name otherwise, which may be an address that is unreachable or absent.
        variables["GLOO_SOCKET_IFNAME"] = LOOPBACK_INTERFACE
    return variables


def role(name: str, rank: int, size: int) -> dict[str, str]:
    """Return the variables of a worker's rank: torchrun also counts in roles, and all workers have one."""
    numbers = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    return {**numbers, **{f"ROLE_{key}": number for key, number in numbers.items()}, "ROLE_NAME": name}
