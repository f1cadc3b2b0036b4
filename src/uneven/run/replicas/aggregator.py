"""The place where the contributions of workers become one outcome: among the workers, or at a server."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from uneven.policy.control.ledger import Order
from uneven.policy.core.actions import StepPlan
from uneven.policy.core.membership import Members
from uneven.policy.samples.order import Portion
from uneven.run.replicas.replica import ExchangeResult
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier
from uneven.run.samples.async_sampling.leased_samples import BatchInHand

Place = tuple[int, int]


class Aggregator:
    """Carries out orders for one worker's replica; each method does nothing unless a kind needs it.

    Attributes:
        shadowed: whether any exchange runs in the background.
        rests: whether workers take part in background exchanges until all rest.
        urgent: whether an exchange may start in the background at any cost.
        hand: the batch whose step has not finished, if workers lease their samples.
    """

    shadowed = rests = urgent = False
    hand: BatchInHand | None = None

    def refused(self, plan: StepPlan) -> str | None:
        """Return why a plan cannot be carried out; None if it can."""
        raise NotImplementedError

    def begin(self, clock: int) -> None:
        """Begin the training after ``clock`` steps; later calls do nothing."""

    def follow(self, part: Portion, plan: StepPlan, new_epoch: bool) -> None:
        """Bring into the replica what the next step needs.
        Raises :class:`PeerError` if a worker is too far behind for too long."""

    def gives(self, order: Order, background: bool) -> Tensor | None:
        """Record the samples of an order before anything is sent. Return the replica, shape (size,), if it must be
        read now."""
        return None

    def meet(
        self, order: Order, own: Tensor | None = None, *, background: bool = False, resting: bool = False
    ) -> ExchangeResult | None:
        """Carry out an order, from reading the replica to writing into it, and wait for it.

        Args:
            own: the replica when the order was made, shape (size,), overwritten; None reads it now.
            background: whether the training continues meanwhile.
            resting: whether this worker only takes part, since it no longer trains.

        Returns:
            None if the contribution was rejected, because it has a NaN or an infinity.

        Raises:
            PeerError: a worker did not take part, or a server does not answer.
            TrainingError: a worker is at another step.
        """
        raise NotImplementedError

    def gave(self) -> None:
        """Note that the newest order is complete."""

    def rejoin(self, waits: int) -> None:
        """Continue after a rejected contribution, once all workers have finished ``waits`` steps."""

    def gather(self, order: Order) -> Callable[[], object] | None:
        """Return a call that waits for all members at no cost to the training; None if it is not needed."""
        return None

    def begin_late(
        self, order: Order, note: Callable[[ExchangeResult, float], None]
    ) -> tuple[Callable[[], Any], Callable[[Any], object]] | None:
        """Start an exchange whose outcome enters some steps later; None if it is complete.
        Return two calls: one waits for it, the other merges its result. ``note`` gets the result and its seconds."""
        raise NotImplementedError

    def more(self) -> bool:
        """Take the samples of the next step; return whether there are any."""
        return True

    def through(self, epochs: int) -> None:
        """Report that this worker has had all its samples of the epochs before this one."""

    def left(self, part: Portion) -> None:
        """Note that the loop was left in this step."""

    def settles(self) -> bool:
        """Return whether all steps of this worker are merged; try to do so without orders of the ledger."""
        return False

    def epoch_over(self) -> None:
        """Note that this worker has made its steps of the newest epoch, and that nothing is under way."""

    def rest(self, evaluating: bool) -> None:
        """Finish what is under way for this worker, also that of others if it has to."""

    def arrive(self, barrier: EvaluationBarrier) -> None:
        """Wait until all workers have arrived at the barrier."""
        barrier.wait()

    def shown(self, members: Members, equal: bool, clock: int, place: Place | None) -> Tensor | None:
        """Return the model to evaluate, shape (size,); None if it is this replica.

        Args:
            equal: whether all replicas are known to be equal.
            place: epoch and iteration of the newest step; None if workers take different numbers of steps.
        """
        raise NotImplementedError

    def remove_member(self, worker: int) -> Any:
        """Remove a failed worker from the server; see :mod:`uneven.run.membership.followed`."""

    def for_newcomers(self) -> Tensor | None:
        """Return the replica, shape (size,), that a newcomer begins with, if it is not the donor's own."""
        return None

    def take_over(self, replica: Tensor | None, clock: int) -> bool:
        """Begin as a newcomer after ``clock`` steps of the others; return whether the replica was replaced."""
        return False

    def state(
        self, numbers: dict[str, Any], rates: dict[str, float], *, shown: bool
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the ledger's numbers as they are saved, and vectors of shape (size,)."""
        raise NotImplementedError

    def check(self, numbers: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Raise :class:`CheckpointError` if these cannot be loaded, vectors (size,); nothing is changed."""
        raise NotImplementedError

    def load(
        self, numbers: dict[str, Any], vectors: dict[str, Tensor], *, same: bool
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """Load :meth:`state`, vectors (size,); only forget what there is unless it is of the ``same`` policy.
        Return the numbers for the ledger, and those that were saved with them."""
        raise NotImplementedError

    def close(self, failed: bool) -> None:
        """Release everything. Raises :class:`PeerError` if a worker has failed."""
