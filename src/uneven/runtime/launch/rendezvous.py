"""The rendezvous of launchers, and the store of a run, which listens on one address only."""

import logging
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from torch.distributed import DistNetworkError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    dynamic_rendezvous,
    registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from uneven.errors import ConfigError, LaunchError
from uneven.runtime.launch.launch_spec import DEFAULT_PORT, Launch
from uneven.runtime.tcp_store import tcp_store

MET_WITHIN_S = 300  # the longest wait of the first machine for the last one
_QUIET_S = 10.0  # of this wait, without a line on the terminal
_LOOK_EVERY_S = 0.1


def keep_store(
    host: str, port: int, remedy: str = "Leave --local-addr, --master-addr and --rdzv-endpoint out to use the loopback"
) -> tuple[Any, int]:
    """Create a store that listens on ``host`` and ``port`` (0: any free port); return it and its port.

    Raises ConfigError, ending with ``remedy``, if it is not an address of this machine or the port is not available.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Bind ourselves: torch's TCPStore would listen on every interface, regardless of `host`.
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"the workers cannot meet at {host}, port {port or 'any'}: {error.strerror}. Is that an address of "
            f"this machine? {remedy}"
        ) from error
    port = listening.getsockname()[1]
    store = tcp_store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return store, port


def towards(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches `host`."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as line:
        # A UDP connect only chooses the route; it sends nothing.
        line.connect(address)
        return str(line.getsockname()[0])


class OneLauncher(StaticTCPRendezvous):
    """The rendezvous of a single launcher with itself; each start meets in a store from :func:`keep_store`."""

    def __init__(self, host: str, port: int, run_id: str) -> None:
        super().__init__(host, port, rank=0, world_size=1, run_id=run_id, timeout=MET_WITHIN_S)
        self._asked = port

    def next_rendezvous(self) -> RendezvousInfo:
        # torch's would listen on every interface, but it uses a store that is there already.
        self._store = None  # the keys of the start before end with its store
        self._store, self.master_port = keep_store(self.master_addr, self._asked)
        return super().next_rendezvous()


class NumberedLaunchers(StaticTCPRendezvous):
    """The rendezvous of launchers with numbers (``--node-rank``).

    Raises LaunchError with the numbers of those that have not reported within the time-out.
    """

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None:
            # torch's store would wait for all machines itself, and its error names none.
            self._store = tcp_store(
                self.master_addr,
                self.master_port,
                is_master=self.rank == 0,
                timeout=self.timeout,
                wait_for_workers=False,
                multi_tenant=True,
            )
        found: RendezvousInfo = super().next_rendezvous()
        found.store.set(f"reported/{self.rank}", "")
        absent, began_s, quiet = [*range(self.world_size)], time.monotonic(), True
        while True:
            try:
                absent = [one for one in absent if not found.store.check([f"reported/{one}"])]
            except DistNetworkError:  # machine 0 has given up
                raise self._without(absent, "and the launcher of machine 0 has ended") from None
            waited_s = time.monotonic() - began_s
            if not absent:
                return found
            if waited_s > self.timeout.total_seconds():
                raise self._without(absent, f"within {self.timeout.total_seconds():g} s")
            if quiet and waited_s > _QUIET_S:
                quiet = False
                print(f"uneven: waits for {_named(absent)}, which has not reported yet", file=sys.stderr)
            time.sleep(_LOOK_EVERY_S)

    def _without(self, absent: Sequence[int], how: str) -> LaunchError:
        where, first = f"{self.master_addr}:{self.master_port}", absent[0]
        return LaunchError(
            f"{_named(absent)} of --nnodes {self.world_size} has not reported at {where} {how}: start `uneven run` "
            f"there with --node-rank {first}, and check that it reaches this address"
        )


def _named(machines: Sequence[int]) -> str:
    return f"machine {', '.join(map(str, machines))}"


def rendezvous(launch: Launch, name: str) -> RendezvousHandler:
    """Return the rendezvous of the launchers of the run ``name``; torch's if several meet without numbers.

    Its meeting raises ConfigError if this machine cannot listen at the address, RendezvousError without the others.
    """
    if launch.here is not None:
        return OneLauncher(*launch.here, name)
    least, most = launch.nodes
    endpoint = launch.rendezvous_endpoint
    if launch.backend == "static":
        host, port = parse_rendezvous_endpoint(endpoint, default_port=DEFAULT_PORT)
        return NumberedLaunchers(host, port, launch.node_rank, most, name, MET_WITHIN_S)
    # The launchers report their errors themselves, more briefly.
    logging.getLogger(dynamic_rendezvous.__name__).setLevel(logging.CRITICAL)
    return registry.get_rendezvous_handler(
        RendezvousParameters(launch.backend, endpoint, name, least, most, launch.local_addr, join_timeout=MET_WITHIN_S)
    )
