"""Who was missing? Asked only after an exchange has failed, so it costs nothing before."""

from __future__ import annotations

import time
from datetime import timedelta

from torch.distributed import distributed_c10d as c10d

from uneven.errors import PeerError

_GRACE_S = 3.0
"""How long the survivors of a failed exchange wait for each other's sign of life."""


class RollCall:
    """Survivors of a failed exchange sign in at the store; whoever does not is missing.

    Args:
        store: the key-value store that the ranks met at; never used while all goes well.
        timeout_s: the time-out of the exchanges, for the message.
    """

    def __init__(self, store: c10d.Store, rank: int, size: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout_s = timeout_s

    def failure(self, what: str, error: BaseException) -> PeerError:
        """The error to raise in place of ``error``, naming the missing ranks."""
        short = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        try:
            missing = self._missing(what)
        except (RuntimeError, ValueError):
            return PeerError(
                f"{what} failed on rank {self._rank}, and the store that the ranks met at is gone: the machine "
                f"with rank 0 or the launcher has ended ({short})"
            )
        if not missing:
            return PeerError(
                f"{what} failed on rank {self._rank} although all {self._size} ranks are alive: the connection "
                f"between some of them broke or one was slower than the time-out of {self._timeout_s:g} s ({short})"
            )
        who = ", ".join(map(str, missing))
        return PeerError(
            f"{what}: rank {who} did not take part (time-out {self._timeout_s:g} s). Look for the error on "
            f"{'that rank' if len(missing) == 1 else 'those ranks'}; a rank that is only slow needs a larger "
            f"timeout_s ({short})"
        )

    def _missing(self, what: str) -> list[int]:
        store = c10d.PrefixStore("uneven/roll-call", self._store)
        key = what.replace(" ", "-")
        self._store.set_timeout(timedelta(seconds=_GRACE_S))
        store.set(f"{key}/{self._rank}", "here")
        deadline = time.monotonic() + _GRACE_S
        absent = [rank for rank in range(self._size) if rank != self._rank]
        while absent and time.monotonic() < deadline:
            absent = [rank for rank in absent if not store.check([f"{key}/{rank}"])]
            time.sleep(0.05)
        return absent
