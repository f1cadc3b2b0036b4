"""The rendezvous of launchers, and the store of a run, which listens on one address only."""

from __future__ import annotations

import logging
import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs mark it as private
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
    dynamic_rendezvous,
    registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from uneven.errors import ConfigError
from uneven.runtime.launch.launch_spec import Launch

_MET_WITHIN_S = 900  # torchrun's


def keep_store(
    host: str, port: int, remedy: str = "Leave --local-addr, --master-addr and --rdzv-endpoint out to use the loopback"
) -> tuple[TCPStore, int]:
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
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return store, port


def towards(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches `host`."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as line:
        # A UDP connect only chooses the route; it sends nothing.
        line.connect(address)
        return str(line.getsockname()[0])


class OneLauncher(StaticTCPRendezvous):
    """The rendezvous of a single launcher with itself. Arguments and errors are those of :func:`keep_store`."""

    def __init__(self, host: str, port: int, run_id: str) -> None:
        # torch's would listen on every interface, but it uses a store that is there already.
        store, port = keep_store(host, port)
        super().__init__(host, port, rank=0, world_size=1, run_id=run_id, timeout=_MET_WITHIN_S)
        self._store = store


def rendezvous(launch: Launch, name: str) -> RendezvousHandler:
    """Return the rendezvous of the launchers of the run ``name``, torch's if there are several.

    Raises ConfigError if this machine cannot listen at the given address, RendezvousError without the other machine.
    """
    if launch.here is not None:
        return OneLauncher(*launch.here, name)
    least, most = launch.nodes
    where = launch.backend, launch.rendezvous_endpoint
    # The launchers report their errors themselves, more briefly.
    logging.getLogger(dynamic_rendezvous.__name__).setLevel(logging.CRITICAL)
    return registry.get_rendezvous_handler(
        RendezvousParameters(*where, name, least, most, launch.local_addr, rank=launch.node_rank, timeout=_MET_WITHIN_S)
    )
