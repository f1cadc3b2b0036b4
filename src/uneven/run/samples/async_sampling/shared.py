"""The objects of one worker that takes samples asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uneven.run.membership.leasing_run import ClaimingElastic
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier
from uneven.run.samples.async_sampling.leased_samples import LeasedSamples
from uneven.run.samples.async_sampling.sample_counter import StoredSampleCounter
from uneven.run.samples.async_sampling.session_store import SessionStore
from uneven.run.samples.async_sampling.shutdown import ShutdownHandshake


@dataclass(frozen=True, slots=True)
class OwnPace:
    """The sample counter, evaluation barrier and shutdown handshake of one worker."""

    rank: int
    counter: StoredSampleCounter
    barrier: EvaluationBarrier
    shutdown: ShutdownHandshake

    def state(self) -> dict[str, Any]:
        """Return the state for a worker that joins an elastic run, as plain data."""
        assert isinstance(self.counter, LeasedSamples)
        sampler = self.counter.sampler
        left = None if sampler is None else sampler.left()
        return {"met": self.barrier.number, "lives": self.counter.state(), "left": left}

    def adopt(self, state: dict[str, Any], members: tuple[int, ...]) -> None:
        """Invert :meth:`state` on a worker that has just become a member."""
        assert isinstance(self.counter, LeasedSamples)
        self.barrier.number = state["met"]
        self.counter.adopt(state["lives"])
        self.counter.changed(0, members)
        if self.counter.sampler is not None:
            self.counter.sampler.adopt(state["left"])


def make_own_pace(rank: int, size: int, timeout_s: float, *, ahead: bool) -> OwnPace:
    """Make the objects of one worker, in a run whose membership does not change.

    Args:
        timeout_s: longest wait for the other workers.
        ahead: see :class:`uneven.policy.samples.supply.SampleCounter`.
    """
    store = SessionStore(rank, size)  # numbered by order, so all ranks make their sessions in the same order
    counter = StoredSampleCounter(store, timeout_s, ahead=ahead)
    return _of(store, counter, timeout_s, lambda: tuple(range(size)))


def _of(
    store: SessionStore, counter: StoredSampleCounter, timeout_s: float, there: Callable[[], tuple[int, ...]]
) -> OwnPace:
    barrier = EvaluationBarrier(store, counter, timeout_s, there)
    return OwnPace(store.rank, counter, barrier, ShutdownHandshake(store))


def make_changing_pace(elastic: ClaimingElastic, timeout_s: float, *, ahead: bool) -> OwnPace:
    """Make the objects of one worker of an elastic run."""
    membership, watch = elastic.membership, elastic.membership.watch
    store = SessionStore(membership.worker, membership.bounds[1] + 1, membership.connected())
    claims = LeasedSamples(
        store, timeout_s, ahead=ahead, members=membership.members, tend=elastic.tend, there=lambda: membership.members
    )
    elastic.claims = claims
    return _of(store, claims, timeout_s, lambda: tuple(one for one in membership.members if one not in watch.dead))
