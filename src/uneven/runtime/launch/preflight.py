"""Checks that run before any worker starts."""

import errno
import socket
import time

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.jobs.processes import usable_cores
from uneven.runtime.launch.launch_spec import Launch, address

_REACHED_WITHIN_S = 5.0
_AGAIN_AFTER_S = 0.1
JOINED_WITHIN_S = 10.0  # a joining launcher may start before the process that keeps the store


def check(launch: Launch) -> None:
    """Raise ConfigError or LaunchError if this machine finds that the workers cannot meet at the given address."""
    if launch.local_addr is not None:
        _refuse_foreign_address(launch.local_addr)
    if not launch.alone and (launch.nodes[1] == 1 or (launch.rdzv_backend != "c10d" and launch.node_rank == 0)):
        _refuse_used_port(launch)
    if launch.join is not None:
        _find_run(launch.join)


def local_workers(launch: Launch) -> int:
    """Return the number of workers to start here; raise ConfigError if it contradicts the shares or the GPUs."""
    if launch.nproc is not None and launch.nproc.isdigit():
        return int(launch.nproc)
    if launch.nproc is None and launch.shares:
        return len(launch.shares)
    import torch  # slow to import, so only when devices must be counted

    match launch.nproc:
        case None:
            count = torch.cuda.device_count() or 1
        case "cpu":
            count = usable_cores()
        case "gpu":
            count = torch.cuda.device_count()
            if count == 0:
                raise ConfigError("--nproc-per-node gpu: torch sees no GPU here; give a number, or cpu")
        case _:  # "auto"
            count = torch.cuda.device_count() or usable_cores()
    if launch.shares and len(launch.shares) != count:
        raise ConfigError(f"{len(launch.shares)} shares for {count} workers: give one share per worker")
    return count


def _refuse_used_port(launch: Launch) -> None:
    host, port = address(launch.endpoint, repr(launch.endpoint))
    join = f"; workers for the elastic run whose store is there need --join {host}:{port}" if launch.elastic else ""
    # Only the first machine's launcher listens here. torch would wait until its timeout for a port in use.
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # another machine's address or another address family: torch reports that itself
            raise LaunchError(
                f"port {port} on {host} is in use: give another one with --master-port or --rdzv-endpoint, or leave "
                f"both out to use a free one{join}"
            ) from None


def _find_run(endpoint: str) -> None:
    """Wait until a process listens there; the process that keeps the store may start later."""
    host, port = address(endpoint, f"--join {endpoint}")
    until_s = time.monotonic() + JOINED_WITHIN_S
    while True:
        left_s = until_s - time.monotonic()
        try:
            socket.create_connection((host, port), max(0.1, left_s)).close()
            return
        except socket.gaierror as error:
            raise ConfigError(
                f"--join {endpoint}: no machine {host} ({error.strerror}): give a name or an address that resolves"
            ) from None
        except OSError as error:
            if left_s <= _AGAIN_AFTER_S:
                raise LaunchError(
                    f"--join {endpoint}: no process has answered at {host}, port {port}, within {JOINED_WITHIN_S:g} s "
                    f"({error.strerror or error}): has that run ended, or is its store at another address?"
                ) from None
        time.sleep(_AGAIN_AFTER_S)


def _refuse_foreign_address(address: str) -> None:
    try:
        # Connect to ourselves through the address. Otherwise torch would retry a wrong one for minutes.
        family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server(("", 0), family=family) as listening:
            listening.settimeout(_REACHED_WITHIN_S)
            with socket.create_connection((address, listening.getsockname()[1]), _REACHED_WITHIN_S):
                listening.accept()[0].close()  # fails if another host answered
    except OSError as error:
        raise ConfigError(
            f"--local-addr {address} is not an address of this machine ({error.strerror or error}): give one that "
            "others can reach, or leave it out"
        ) from error
