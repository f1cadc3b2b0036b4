"""Where the workers of a member meet: a store of torch's, kept by the engine so that it outlives each of them."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs say that it is private

from uneven.errors import ConfigError
from uneven.fleet.member_team import PATIENCE_S, Seat


class Meetings:
    """Seats workers; the store is opened for the first member that has several."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None
        self._port = 0
        self._held = 0

    def seats(self, size: int) -> list[Seat]:
        """A seat for each of so many workers of a member.

        Raises:
            ConfigError: no port on the loopback is to be had.
        """
        if size == 1:
            return [Seat()]
        if self._store is None:
            self._open()
        self._held += 1
        return [Seat(rank, size, self._port, f"meeting {self._held}") for rank in range(size)]

    def close(self) -> None:
        """Close the port."""
        self._store = None

    def _open(self) -> None:
        try:
            listening = socket.create_server(("127.0.0.1", 0))  # the loopback alone: torch would listen everywhere
        except OSError as error:
            raise ConfigError(
                f"members on several devices need a port on the loopback, which cannot be had ({error.strerror}): give "
                f"every member one device"
            ) from error
        self._port = listening.getsockname()[1]
        self._store = TCPStore(
            "127.0.0.1", self._port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach(),
            timeout=timedelta(seconds=PATIENCE_S),
        )  # fmt: skip
