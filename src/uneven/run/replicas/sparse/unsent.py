"""A worker's movement since the last exchange, and the unsent entries of earlier ones."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from uneven.errors import CheckpointError
from uneven.policy.core.actions import Exchange
from uneven.policy.select import Accumulator, BandwidthControl, Selection, Significant
from uneven.policy.select.picked import Array
from uneven.run.replicas.flat import Flat
from uneven.run.replicas.replica import ExchangeResult


class LineThreshold:
    """A threshold that each speaker updates once in each exchange, by ``sent_bytes`` to other sites in the last one."""

    def __init__(self) -> None:
        self.control: BandwidthControl | None = None
        self.sent_bytes = 0.0
        self._since_s = 0.0  # start of the last exchange

    def within(self, select: Selection) -> Selection:
        """Return the selection with a threshold that keeps to its bandwidth, if it has any."""
        now_s = time.perf_counter()
        passed_s, self._since_s = now_s - self._since_s, now_s
        if not isinstance(select, Significant) or not select.mbit_per_s:
            return select
        if self.control is None:  # nothing has been sent yet
            self.control = select.control()
            return select
        self.control.measured(self.sent_bytes, passed_s)
        return replace(select, threshold=self.control.applied(select.threshold))


OWN = "entries-"
HELD, BASE, WHOSE = f"{OWN}held", f"{OWN}base", f"{OWN}rank"

Saved = TypeVar("Saved")


class Moved(NamedTuple):
    """A worker's input to an exchange.

    ``weight`` are its party's samples since the last exchange; its own steps count as ``part``; ``rate`` is the
    learning rate as a part of the first one; ``epoch`` and ``iteration`` are those of its newest step.
    """

    clock: int
    weight: float
    part: float = 1.0
    rate: float = 1.0
    epoch: int = 0
    iteration: int = 0


class UnsentMovement:
    """The replica after the last exchange, and the entries that wait. ``flat`` are the trained parameters."""

    def __init__(self, flat: Flat) -> None:
        self._flat = flat
        self._width = 8 if flat.dtype is torch.float64 else 4
        self._base: torch.Tensor | None = None  # the replica after the last exchange
        # New pages cost the processor more than the computation on them: 21 of 31 ms for 10,000,000 entries.
        self._spare: torch.Tensor | None = None  # the replica after the exchange before, whose memory is free
        self._movement: Array | None = None
        self._sums: Accumulator | None = None
        self._picked = 1.0
        self._threshold = LineThreshold()
        self._saved: tuple[int, dict[str, torch.Tensor]] = (-1, {})  # rank and state from a checkpoint

    def begin(self) -> None:
        """Start with the training: movements are measured from here on, or from a loaded checkpoint."""
        raise NotImplementedError

    def forget(self) -> None:
        self._base = self._sums = self._spare = None
        self._saved = -1, {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the held entries and the replica after the last exchange, each of shape (size,)."""
        own = self._flat.read()
        held = torch.zeros_like(own) if self._sums is None else torch.from_numpy(self._sums.held.copy())
        return {HELD: held, BASE: own if self._base is None else self._base.clone()}

    def check(self, vectors: dict[str, torch.Tensor]) -> None:
        """Raise :class:`CheckpointError` if vectors, shape (size,), are of another model; no vectors are always
        accepted."""
        for name, vector in vectors.items():
            if len(vector) != self._flat.size:
                raise CheckpointError(
                    f"{name!r} in the checkpoint has {len(vector)} numbers, but this model {self._flat.size}: "
                    "resume with the former model"
                )

    def load_state_dict(self, vectors: dict[str, torch.Tensor], rank: int) -> None:
        """Load :meth:`state_dict`, vectors (size,) of worker ``rank``, when training starts."""
        self._saved = (rank, dict(vectors)) if set(vectors) == {HELD, BASE} else (-1, {})

    def has(self, exchange: Exchange) -> bool:
        """Return whether this worker has a part in an exchange; not if its party has no peer."""
        raise NotImplementedError

    def meet(self, exchange: Exchange, moved: Moved) -> ExchangeResult:
        """Take part in an exchange, from reading the replica to writing into it, and wait for it.
        Raises :class:`PeerError` for an absent worker or damaged message, :class:`TrainingError` if steps differ."""
        raise NotImplementedError

    def begin_late(
        self, exchange: Exchange, moved: Moved, landed: Callable[[ExchangeResult, float], None]
    ) -> tuple[Callable[[], Any], Callable[[Any], torch.Tensor]]:
        """Send the picked entries of an exchange whose outcome enters some steps later.
        Returns two functions: the first receives the entries of other parties, the second merges them and returns the
        change of the replica. ``landed`` is called with the result, and the seconds of training that it took."""
        raise NotImplementedError

    def catch_up(self) -> None:
        """Receive what is still under way; all workers call it at the same step."""

    def take_over(self) -> None:
        """Begin as a newcomer with the state of another worker, which is loaded."""

    def close(self, failed: bool) -> None:
        """Release everything. Raises :class:`PeerError` if a worker has failed."""

    def _begin_with(self, base: torch.Tensor, held: torch.Tensor | None = None) -> None:
        """Measure from ``base``, shape (size,), on; ``held`` of the same shape waits."""
        self._base = base
        self._sums = Accumulator((torch.zeros_like(base) if held is None else held.clone()).numpy())

    def _moved(self, moved: Moved) -> tuple[Array, Array, bool]:
        """Return the replica and its movement since the last exchange, each (size,), and whether that is finite."""
        self.begin()
        assert self._base is not None
        base, own = self._base.numpy(), self._flat.read(self._spare).numpy()
        movement = self._movement = np.subtract(own, base, out=self._movement)
        if moved.part != 1.0:  # P parties that divide the learning rate: the steps of each count 1 / P
            movement *= own.dtype.type(moved.part)
            np.add(base, movement, out=own)
        return own, movement, math.isfinite(float(movement.sum()))

    def _written(self, outcome: Array, sent_bytes: int, finite: bool) -> ExchangeResult:
        after = torch.from_numpy(outcome)
        self._flat.write(after)
        self._spare, self._base = self._base, after
        return self._met(sent_bytes, finite)

    def _met(self, sent_bytes: int, finite: bool) -> ExchangeResult:
        assert self._sums is not None
        held = self._sums.held
        distance = math.sqrt(float(np.dot(held, held)) / max(1, len(held)))
        return ExchangeResult(sent_bytes, distance, finite, 0, self._picked)


def apart(saved: dict[str, Saved]) -> tuple[dict[str, Saved], dict[str, Saved]]:
    """Split a saved state into the part of this module and the rest."""
    own = {name: one for name, one in saved.items() if name.startswith(OWN)}
    return own, {name: one for name, one in saved.items() if name not in own}
