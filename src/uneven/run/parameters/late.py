"""Exchanges whose outcome enters the replica some steps later: under way beside the training until then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from uneven.core.actions import Exchange, overlapping
from uneven.core.plain import Misfit
from uneven.errors import CheckpointError, TrainingError
from uneven.merge import Kept
from uneven.run.parameters.replica import Met, Replica

OWN = "late-"
CHANGE, DUE = f"{OWN}change", f"{OWN}due"
"""Names of what is saved, which all begin with the first."""


class UnderWay(Protocol):
    """An exchange that has begun, and goes on beside the training."""

    def arrive(self) -> Tensor:
        """Wait for it; what enters the replica: shape (size,), or of the parameters alone, which come first.

        Raises:
            TrainingError: it failed.
        """
        ...

    def drop(self) -> object:
        """Wait for it, and let nothing come of it."""
        ...


class LateOutcomes:
    """What one worker has under way, or has an outcome of that enters later; one exchange at a time.

    An outcome is merged as soon as somebody asks for what merges keep, and enters when it is due: so the model to
    evaluate has it, and the replica has what all replicas have after the same step.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._begun: UnderWay | None = None
        self._change: Tensor | None = None  # shape (size,): what enters
        self._due = 0  # the clock at which it does

    def check_free(self, exchange: Exchange, clock: int) -> None:
        """See that an exchange can begin after so many steps: what came before has entered, and a step has taken it in.

        Raises:
            ConfigError: it cannot.
        """
        if self._begun is not None or self._change is not None or clock == self._due:
            raise overlapping(exchange)

    def begin(self, begun: UnderWay, due: int) -> None:
        """Something is under way, and enters after so many steps."""
        assert self._begun is None, "check_free comes first"
        self._begun, self._due = begun, due

    def due(self, clock: int) -> bool:
        """Whether an outcome enters after so many steps."""
        return clock >= self._due and (self._begun is not None or self._change is not None)

    def arrive(self) -> None:
        """Wait for what is under way, and merge it; the replica stays as it is.

        Raises:
            TrainingError: it failed.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            return
        change = begun.arrive()
        if len(change) < self._replica.flat.size:
            change = torch.cat([change, change.new_zeros(self._replica.flat.size - len(change))])
        self._change = change

    def enter(self) -> None:
        """The outcome enters, with what was learnt meanwhile.

        Raises:
            TrainingError: the exchange failed.
        """
        self.arrive()
        change, self._change = self._change, None
        if change is not None:
            self._replica.flat.add(change, 1.0)

    def forget(self) -> None:
        """The replica has become another one: what is under way is waited for, and counts no more."""
        begun, self._begun, self._change, self._due = self._begun, None, None, 0
        if begun is not None:
            begun.drop()

    def state(self, shown: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
        """A vector of shape (size,), and a number.

        Args:
            shown: whether the model to evaluate is in the replica's place, which every outcome has entered.
        """
        self.arrive()
        if shown or self._change is None:
            return {CHANGE: self._replica.flat.room().zero_()}, {DUE: 0.0}
        return {CHANGE: self._change.clone()}, {DUE: float(self._due)}

    def check(self, state: Kept) -> None:
        """See that :meth:`load` can take this up; nothing at all always can be.

        Raises:
            Misfit: something is missing.
            CheckpointError: the vector is of another model.
        """
        if state and set(state) != {CHANGE, DUE}:
            raise Misfit(sorted(state), f"{CHANGE} and {DUE}, or nothing", "what is under way")
        if state and len(state[CHANGE]) != self._replica.flat.size:
            raise CheckpointError(
                f"what is under way in the checkpoint has {len(state[CHANGE])} numbers, this model "
                f"{self._replica.flat.size}: resume with the model that the run began with"
            )

    def load(self, state: Kept) -> None:
        """Inverse of :meth:`state`, vector and number in one; nothing at all is nothing under way."""
        self._begun = self._change = None
        flat = self._replica.flat
        if state.get(DUE):
            self._due, self._change = round(state[DUE]), state[CHANGE].to(flat.device, flat.dtype, copy=True)


def split(vectors: dict[str, Tensor], kept: dict[str, float]) -> tuple[Kept, dict[str, Tensor], dict[str, float]]:
    """What was saved here, and the vectors and numbers that are of others."""
    own: Kept = {name: one for name, one in (*vectors.items(), *kept.items()) if name.startswith(OWN)}
    rest = {name: one for name, one in vectors.items() if name not in own}
    return own, rest, {name: one for name, one in kept.items() if name not in own}


class LatePiece:
    """A piece whose sum is under way, in another thread.

    Args:
        samples: that this worker took since its last exchange.
        total: replaces a vector by its sum over the members; returns the bytes that were sent.
        landed: hears what came of it, and how many seconds it took.
    """

    def __init__(
        self, replica: Replica, exchange: Exchange, samples: float, total: Callable[[Tensor], int],
        landed: Callable[[Met, float], None],
    ) -> None:  # fmt: skip
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
    """Carries a sum in a thread of its own, at once.

    Attributes:
        took_s: seconds; once it has been waited for.
    """

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
        """Bytes that this worker sent for it.

        Raises:
            TrainingError: it failed.
        """
        self._thread.join()
        if self._sent_bytes is None:
            raise self._error or TrainingError("the thread that exchanges beside the training has ended: see its error")
        return self._sent_bytes
