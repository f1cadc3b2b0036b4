"""Where real gradients plug in. Pure.

The simulator says what happens, in the order of virtual time; an arithmetic that holds models makes it so. What is
stale in virtual time is then stale in the models too.
"""

from __future__ import annotations

from collections.abc import Sequence

from uneven.core.actions import Exchange


class Arithmetic:
    """Told everything, in virtual-time order. This one does nothing; a training overrides what it needs.

    A step of one worker, with the exchanges of its plan::

        computes ─► sends ─► merges ─► steps                              moment BACKWARD, over a group
        computes ─► sends ─► merges ─► answers ─► reads ─► steps          moment BACKWARD, over the parameter server
        computes ─► steps ─► sends ─► merges                              moment STEP, over a group
        computes ─► steps ─► sends ─► merges ─┐                           moment STEP, over the parameter server
        answers ─► reads ─► computes …       ◄┘ when the next step starts
        computes ─► steps ─► sends … merges … answers … reads             moment BACKGROUND, while it computes again
        computes ─► steps ─► writes … hears … hears                       with a lead, one site after the other

    Attributes:
        enough: there is nothing more to be learnt: the simulation ends with the appointment that it is keeping.
    """

    enough: bool = False

    def enters(self, rank: int, source: int | None) -> None:
        """A worker takes part from its next step on, with the state that ``source`` has then.

        None at the start, and where nobody is left to copy from.
        """

    def computes(self, rank: int, iteration: int, samples: range, at_s: float) -> None:
        """A gradient on these samples, at the parameters that the worker has now.

        Args:
            at_s: virtual time, from the start.
            samples: positions in the endless order of the data, which is a fixed permutation epoch after epoch.
        """

    def sends(self, rank: int, exchange: Exchange) -> None:
        """What this worker contributes leaves it now; what its replica does from here on is not in it."""

    def writes(self, rank: int, exchange: Exchange) -> object:
        """As :meth:`sends`, of what other sites hear one by one: it is handed back to :meth:`hears`."""

    def hears(self, exchange: Exchange, content: object, ranks: Sequence[int]) -> None:
        """These workers, of one site, hear now what somebody has written."""

    def merges(self, exchange: Exchange, ranks: tuple[int, ...]) -> None:
        """The contributions of these workers are merged now.

        Over a group, all of them have the outcome at once; in the background it is the change that is applied, so
        that progress is kept. Of a sum over a group in the background, the one rank is the speaker that all the
        others hear now. Over the parameter server, that server has them now.
        """

    def answers(self, rank: int, exchange: Exchange) -> None:
        """The parameter server answers this worker now; what it learns afterwards is not in the answer."""

    def reads(self, rank: int, exchange: Exchange) -> None:
        """The answer reaches this worker now: the server's parameters as they were when :meth:`answers` was called."""

    def catches_up(self, rank: int, exchange: Exchange, source: int | None) -> None:
        """What this worker sent came too late and is dropped; it takes over the newest state.

        Args:
            source: a worker whose contribution was in time; None if all of them are gone.
        """

    def divides(self, rank: int, rate: float, weight: float) -> None:
        """What the learning rate and the gradient are multiplied by in the step that this worker takes now; see
        ``StepPlan.divided``."""

    def steps(self, rank: int, iteration: int, at_s: float) -> None:
        """The optimizer's step, with the gradient as it is now. A step whose gradient came too late is not taken."""

    def leaves(self, rank: int) -> None:
        """A worker is gone; it comes back only by :meth:`enters`."""

    def together_part(self, ranks: Sequence[int], exchange: Exchange) -> float | None:
        """As :meth:`sent_part`, of what some workers send, added up; None where nobody knows."""
        return None

    def sent_part(self, rank: int, exchange: Exchange) -> float | None:
        """Bytes of the entries that travel now, as a part of those of all; None takes the description's word."""
        return None
