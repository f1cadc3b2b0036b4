"""What a worker has moved and not sent. Pure."""

from __future__ import annotations

from uneven.entries.pack import shortest
from uneven.entries.picked import Array, Picked
from uneven.entries.select import Selection


class Accumulator:
    """What was not sent stays and adds up, so that nothing is lost: error feedback, and Gaia's accumulated update.

    Only movements of this worker's own steps belong in here: what was received must not be, or it would be sent back.

    Attributes:
        held: shape (n,).
    """

    def __init__(self, held: Array) -> None:
        self.held = held

    def add(self, movement: Array) -> None:
        """What the worker's own steps have moved; shape (n,)."""
        self.held += movement

    def take(self, select: Selection, values: Array, rate: float = 1.0) -> Picked:
        """What travels now; the rest stays, and what rounding has taken from it.

        Where the entries with their places would take as many bytes as all of them without, all travel, as they are.

        Args:
            values, rate: as for :meth:`Selection.pick`.
        """
        picked = shortest(select.pick(self.held, values, rate), self.held)
        if picked.places is None:
            self.held[:] = 0
        elif picked.bits == 32:
            self.held[picked.places] = 0
        else:
            self.held[picked.places] -= picked.values
        return picked
