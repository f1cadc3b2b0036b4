"""A launcher's way to the store of an elastic run, and the store that it keeps for the case that the run's own is gone.

Members agree on the store that follows (:mod:`uneven.run.elastic.succession`). A launcher has no vote: it looks which
store in the row they have gone on with, and whether that is its own.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from uneven.board import ABANDONED, REIGN, RUN, Board
from uneven.launch.here import keep_store
from uneven.stores import Store, WayToStore, address_of, reached

_Answer = TypeVar("_Answer")

_REACHED_WITHIN_S = 1.0
_DECIDED_WITHIN_S = 10.0
"""How long members may take to find a store silent or to decide at one, beyond the time of silence."""


class StandingBy(WayToStore):
    """See the module; stands where the store does.

    Args:
        store: of the run.
        address: its host and port.
        run: what a launcher that joins needs to know.
        own_host: where this launcher can be reached; None where it keeps no store in reserve.
        silence_s: after which members take a store for gone.

    Attributes:
        address: of the present store.
        keeps: whether that is this launcher's own.
        cut: since when the store has not answered, monotonic seconds; None while it does.
    """

    def __init__(
        self, store: Store, address: tuple[str, int], run: dict[str, Any], own_host: str | None, silence_s: float
    ) -> None:
        self.address = address
        self.keeps = False
        self.cut: float | None = None
        self._store = store
        self._run = run
        self._host = own_host
        self._silence_s = silence_s
        self._row: tuple[str, ...] = ()
        self._own: tuple[Store, int] | None = None
        self._offered = ""
        self._stand_by()

    @property
    def seeks(self) -> bool:
        """Whether another store may still take the place of the one that is gone."""
        limit_s = len(self._row) * (self._silence_s + _DECIDED_WITHIN_S)
        return self.cut is not None and time.monotonic() < self.cut + limit_s

    def look(self) -> bool:
        """See whether the store is there, else which one follows; to be called every second or so.

        Returns:
            Whether another one has just taken its place.
        """
        with contextlib.suppress(RuntimeError):
            if self.cut is None:
                self._row = Board(self).row()
                return False
        return self.seeks and any(self._follows(one) for one in self._row)

    def close(self) -> None:
        """This launcher ends."""
        if self._offered and not self.keeps:
            with contextlib.suppress(RuntimeError):
                self._store.set(self._offered, "")

    def _stand_by(self) -> None:
        """Offer a store that may follow the present one: the one that was offered before, unless it was voted at."""
        if self._host is None:
            return
        if self._own is None or self._own[0].check([REIGN]):
            self._own = keep_store(self._host, 0)
            self._own[0].set(RUN, json.dumps(self._run))
        with contextlib.suppress(RuntimeError):
            self._offered = Board(self).offer(f"{self._host} {self._own[1]}")
            self._row = Board(self).row()

    def _follows(self, text: str) -> bool:
        address = address_of(text)
        own = self._own is not None and address == (self._host, self._own[1])
        store = self._own[0] if own and self._own is not None else reached(address, _REACHED_WITHIN_S)
        try:
            if store is None or Board(store).look(REIGN) in (None, ABANDONED):
                return False
        except RuntimeError:
            return False
        self._store, self.address, self.cut, self.keeps = store, address, None, own
        if not own:
            self._stand_by()
        return True

    def call(self, ask: Callable[[Store], _Answer]) -> _Answer:
        """See :class:`uneven.stores.WayToStore`."""
        try:
            return ask(self._store)
        except RuntimeError:
            self.cut = time.monotonic() if self.cut is None else self.cut
            raise
