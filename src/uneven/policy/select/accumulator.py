"""The accumulated movement that a worker has not sent yet."""

from __future__ import annotations

from uneven.policy.select.pack import shortest
from uneven.policy.select.picked import Array, Picked
from uneven.policy.select.select import Selection


class Accumulator:
    """Error feedback, as in Gaia's accumulated update: unsent movement adds up until it is sent, so nothing is lost.

    Add only movements of this worker's own steps: received ones would be sent back.
    """

    def __init__(self, held: Array) -> None:
        self.held = held  # (n,)

    def add(self, movement: Array) -> None:
        """Add the movement of the worker's own steps; shape (n,)."""
        self.held += movement

    def take(self, select: Selection, values: Array, rate: float = 1.0) -> Picked:
        """Return the entries of ``held`` (n,) to send now, given the replica (n,); keep the rest and rounding
        errors."""
        picked = self.pick(select, values, rate)
        self.sent(picked)
        return picked

    def pick(self, select: Selection, values: Array, rate: float = 1.0) -> Picked:
        """Return what :meth:`take` does, and keep all of it until :meth:`sent`."""
        # If entries with their places would take as many bytes as the whole vector, send the vector without rounding.
        return shortest(select.pick(self.held, values, rate), self.held)

    def sent(self, picked: Picked) -> None:
        if picked.places is None:
            self.held[:] = 0
        elif picked.bits == 32:
            self.held[picked.places] = 0
        else:
            self.held[picked.places] -= picked.values  # the rounding error stays
