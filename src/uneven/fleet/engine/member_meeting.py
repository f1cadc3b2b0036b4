"""Open the torch store through which the workers of a member find each other."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.errors import ConfigError
from uneven.fleet.member.team import PATIENCE_S, Seat


class Meetings:
    """The rendezvous of members' workers at this machine's `address`. The engine's store outlives each worker."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self._store: TCPStore | None = None
        self._port = 0
        self._held = 0

    def seats(self, size: int) -> list[Seat]:
        """Return a seat for each of a member's `size` workers. Raises `ConfigError` if no port is available."""
        if size == 1:
            return [Seat()]
        if self._store is None:
            self._open()
        self._held += 1
        # Each rendezvous has its own key prefix, so a later member never reads the keys of an earlier one.
        return [Seat(rank, size, self._port, f"meeting {self._held}", self._address) for rank in range(size)]

    def close(self) -> None:
        self._store = None

    def _open(self) -> None:
        try:
            listening = socket.create_server((self._address, 0))  # a socket of torch's would listen on all interfaces
        except OSError as error:
            raise ConfigError(
                f"members on several devices need a port on {self._address}, which cannot be had ({error.strerror}): "
                f"give every member one device"
            ) from error
        self._port = listening.getsockname()[1]
        self._store = TCPStore(
            self._address,
            self._port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
            timeout=timedelta(seconds=PATIENCE_S),
        )
