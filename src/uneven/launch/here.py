"""Where the workers of one machine meet if nobody else is to come: a store that listens on one address only.

torch's own rendezvous opens its stores on every interface, whatever address they are given.
"""

from __future__ import annotations

import socket

from torch.distributed import (  # type: ignore[attr-defined] # its stubs say that some are private
    PrefixStore,
    TCPStore,
)
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from uneven.errors import ConfigError


def keep_store(
    host: str, port: int, remedy: str = "Leave --local-addr, --master-addr and --rdzv-endpoint out to use the loopback"
) -> tuple[TCPStore, int]:
    """A store that this process keeps, and its port.

    Args:
        host: address to listen on.
        port: 0 for any that is free.
        remedy: the way out, for the error.

    Raises:
        ConfigError: it is not an address of this machine, or the port cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
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
    """The address of this machine that is seen there; nothing is sent."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as line:
        line.connect(address)
        return str(line.getsockname()[0])


class Here(RendezvousHandler):
    """The rendezvous of a single launcher, with itself.

    Args:
        host: address to listen on.
        port: 0 for any that is free.
        run_id: name of the run.

    Raises:
        ConfigError: it is not an address of this machine, or the port cannot be had.
    """

    def __init__(self, host: str, port: int, run_id: str) -> None:
        self._store, port = keep_store(host, port)
        self._info = RendezvousStoreInfo(host, port)
        self._run_id = run_id

    def get_backend(self) -> str:
        """For torch's log."""
        return "here"

    @property
    def use_agent_store(self) -> bool:
        """Workers meet at this store, too."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """At once."""
        return RendezvousInfo(PrefixStore(self._run_id, self._store), 0, 1, self._info)

    def is_closed(self) -> bool:
        """Never."""
        return False

    def set_closed(self) -> None:
        """Nobody else needs to know."""

    def num_nodes_waiting(self) -> int:
        """Nobody can."""
        return 0

    def get_run_id(self) -> str:
        """As given."""
        return self._run_id

    def shutdown(self) -> bool:
        """The store ends with this object."""
        return True
