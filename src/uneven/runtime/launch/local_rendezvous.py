"""The rendezvous of workers on a single machine: a store that listens on one address only."""

from __future__ import annotations

import socket

from torch.distributed import (  # type: ignore[attr-defined] # its stubs mark some as private
    PrefixStore,
    TCPStore,
)
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from uneven.errors import ConfigError


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


class LocalRendezvous(RendezvousHandler):
    """The rendezvous of a single launcher with itself. Arguments and errors are those of :func:`keep_store`."""

    def __init__(self, host: str, port: int, run_id: str) -> None:
        self._store, port = keep_store(host, port)
        self._info = RendezvousStoreInfo(host, port)
        self._run_id = run_id

    def get_backend(self) -> str:
        return "here"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, self._info)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing: no other launcher takes part."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True
