"""The interface through which real gradients enter a simulation.

The simulator calls it in the order of virtual time; an arithmetic that holds models applies each call to them. So what
is stale in virtual time is stale in the models too.
"""

from collections.abc import Sequence

from uneven.policy.core.actions import Exchange


class Arithmetic:
    """The receiver of all events, in virtual-time order. This one does nothing; a training overrides what it needs.

    A step of one worker, with the exchanges of its plan::

        computes ─► sends ─► merges ─► steps                              moment BACKWARD, over a group
        computes ─► sends ─► merges ─► answers ─► reads ─► steps          moment BACKWARD, over the parameter server
        computes ─► steps ─► sends ─► merges                              moment STEP, over a group
        computes ─► steps ─► sends ─► merges ─┐                           moment STEP, over the parameter server
        answers ─► reads ─► computes …       ◄┘ when the next step starts
        computes ─► steps ─► sends … merges … answers … reads             moment BACKGROUND, while it computes again
        computes ─► steps ─► writes … hears … hears                       with a lead, one site after the other

    Attributes:
        enough: whether the goal is reached, so that the simulation ends after the current event.
    """

    enough: bool = False

    def enters(self, rank: int, source: int | None) -> None:
        """Add a worker from its next step on, with the state that ``source`` has then; None if there is no source."""

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        """Compute a gradient on these positions of the data's endless order, at the worker's current parameters."""

    def sends(self, rank: int, exchange: Exchange) -> None:
        """Take this worker's contribution now; later changes of its replica are not part of it."""

    def writes(self, rank: int, exchange: Exchange) -> object:
        """Return a contribution, as in :meth:`sends`, that other sites receive one by one through :meth:`hears`."""

    def hears(self, exchange: Exchange, content: object, ranks: Sequence[int]) -> None:
        """Deliver what :meth:`writes` returned to these workers of one site."""

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        """Merge the contributions of these workers now.

        Over a group, all of them get the outcome immediately; in the background the change is applied, so that progress
        is kept. For a sum over a group in the background, ``ranks`` is the one sender whose value all others receive
        now. Over the parameter server, the server has the contributions now.
        """

    def answers(self, rank: int, exchange: Exchange) -> None:
        """Take the parameter server's answer to this worker now; later changes are not part of it."""

    def reads(self, rank: int, exchange: Exchange) -> None:
        """Deliver to this worker the answer of the time when :meth:`answers` was called."""

    def catches_up(self, rank: int, exchange: Exchange, source: int | None) -> None:
        """Drop this worker's late contribution and give it the newest state, of ``source`` if any worker has it."""

    def divides(self, rank: int, rate: float, weight: float) -> None:
        """Set the factors of learning rate and gradient in this worker's current step, see ``StepPlan.divided``."""

    def steps(self, rank: int, iteration: int, at_s: float) -> None:
        """Take the optimizer's step with the current gradient; not called if the gradient came too late."""

    def leaves(self, rank: int) -> None:
        """Remove a worker; it returns only by :meth:`enters`."""

    def together_part(self, ranks: Sequence[int], exchange: Exchange) -> float | None:
        """Return :meth:`sent_part` of the sum of several workers' contributions; None if unknown."""
        return None

    def sent_part(self, rank: int, exchange: Exchange) -> float | None:
        """Return the bytes of the selected entries relative to all; None to use the description's value."""
        return None
