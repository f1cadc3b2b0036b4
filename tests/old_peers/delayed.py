"""Delayed exchanges: they run in the background, and their outcome enters the replica some steps later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from uneven.errors import CheckpointError, TrainingError
from uneven.policy.core.actions import Exchange, overlapping
from uneven.policy.core.plain import Misfit
from uneven.policy.merge import Kept
from old_peers.replica import ExchangeResult, Replica

OWN = "late-"
CHANGE, DUE = f"{OWN}change", f"{OWN}due"


class UnderWay(Protocol):
    """An exchange in the background."""

    def arrive(self) -> Tensor:
        """Wait for it; return what enters the replica, shape (size,), or (trained,) for the parameters only.
        Raises :class:`TrainingError` if it failed."""
        ...

    def drop(self) -> object:
        """Wait for it and drop its outcome."""
        ...


class DelayedOutcomes:
    """One worker's delayed exchange, or its outcome that enters later; one at a time.
    An outcome is merged when the state of merges is needed, and enters every replica after the same step."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._begun: UnderWay | None = None
        self._change: Tensor | None = None  # shape (size,): the outcome to add
        self._due = 0  # the clock at which it enters

    def check_free(self, exchange: Exchange, clock: int) -> None:
        """Raise :class:`ConfigError` unless the last outcome entered at an earlier step than ``clock``."""
        if self._begun is not None or self._change is not None or clock == self._due:
            raise overlapping(exchange)

    def begin(self, begun: UnderWay, due: int) -> None:
        assert self._begun is None, "check_free comes first"
        self._begun, self._due = begun, due

    def due(self, clock: int) -> bool:
        """Return whether an outcome enters after ``clock`` steps."""
        return clock >= self._due and (self._begun is not None or self._change is not None)

    def arrive(self) -> None:
        """Wait for the exchange and merge it; the replica does not change. Raises :class:`TrainingError` if it
        failed."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        change = begun.arrive()
        if len(change) < self._replica.flat.size:
            change = torch.cat([change, change.new_zeros(self._replica.flat.size - len(change))])
        self._change = change

    def enter(self) -> None:
        """Add the outcome to the replica, which has trained since; raises :class:`TrainingError` if the exchange
        failed."""
        self.arrive()
        change, self._change = self._change, None
        if change is not None:
            self._replica.flat.add(change, 1.0)

    def forget(self) -> None:
        """Wait for the exchange and drop it, because the replica was replaced."""
        begun, self._begun, self._change, self._due = self._begun, None, None, 0
        if begun is not None:
            begun.drop()

    def state(self, shown: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return a vector of shape (size,), and a number; ``shown`` if the replica already includes every outcome."""
        self.arrive()
        if shown or self._change is None:
            return {CHANGE: self._replica.flat.room().zero_()}, {DUE: 0.0}
        return {CHANGE: self._change.clone()}, {DUE: float(self._due)}

    def check(self, state: Kept) -> None:
        """Raise :class:`Misfit` if an entry is missing, :class:`CheckpointError` if the vector is of another model."""
        if state and set(state) != {CHANGE, DUE}:
            raise Misfit(sorted(state), f"{CHANGE} and {DUE}, or nothing", "what is under way")
        if state and len(state[CHANGE]) != self._replica.flat.size:
            raise CheckpointError(
                f"what is under way in the checkpoint has {len(state[CHANGE])} numbers, this model "
                f"{self._replica.flat.size}: resume with the model that the run began with"
            )

    def load(self, state: Kept) -> None:
        """Load :meth:`state`, vector and number in one; an empty state means no exchange."""
        self._begun = self._change = None
        flat = self._replica.flat
        if state.get(DUE):
            self._due, self._change = round(state[DUE]), state[CHANGE].to(flat.device, flat.dtype, copy=True)


def split(vectors: dict[str, Tensor], kept: dict[str, float]) -> tuple[Kept, dict[str, Tensor], dict[str, float]]:
    """Return the entries saved here, then the other vectors (size,) and numbers."""
    own: Kept = {name: one for name, one in (*vectors.items(), *kept.items()) if name.startswith(OWN)}
    rest = {name: one for name, one in vectors.items() if name not in own}
    return own, rest, {name: one for name, one in kept.items() if name not in own}


class LatePiece:
    """A piece whose sum is computed in another thread; ``landed`` is called with the result and its duration in
    seconds."""

    def __init__(
        self,
        replica: Replica,
        exchange: Exchange,
        samples: float,
        total: Callable[[Tensor], int],
        landed: Callable[[ExchangeResult, float], None],
    ) -> None:
        given = replica.gives(exchange, samples)
        self._replica = replica
        self._exchange = exchange
        self._given = given
        self._landed = landed
        self._sum = AsideSum(lambda: total(given.vector))

    def arrive(self) -> Tensor:
        sent_bytes, sent = self._sum.wait(), self._given.own.clone()
        met = self._replica.takes(self._exchange, self._given, sent_bytes)
        self._landed(met, self._sum.took_s)
        return self._given.own.sub_(sent)

    def drop(self) -> None:
        self._sum.wait()


class AsideSum:
    """A sum in its own thread, started immediately; it took ``took_s`` seconds once :meth:`wait` has returned."""

    def __init__(self, total: Callable[[], int]) -> None:
        self._total = total
        self._sent_bytes: int | None = None
        self._error: TrainingError | None = None
        self.took_s = 0.0
        self._thread = threading.Thread(target=self._run, name="uneven-late", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began_s = time.perf_counter()
        try:
            self._sent_bytes = self._total()
        except TrainingError as error:
            self._error = error
        self.took_s = time.perf_counter() - began_s

    def wait(self) -> int:
        """Return the bytes that this worker sent; raises :class:`TrainingError` if the sum failed."""
        self._thread.join()
        if self._sent_bytes is None:
            raise self._error or TrainingError("the thread that exchanges beside the training has ended: see its error")
        return self._sent_bytes
