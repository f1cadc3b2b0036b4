"""The objects of one worker that takes samples asynchronously."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

    def for_newcomers(self) -> dict[str, Any]:
        assert isinstance(self.counter, LeasedSamples)
        sampler = self.counter.sampler
        left = None if sampler is None else sampler.left()
        return {"met": self.barrier.number, "lives": self.counter.state(), "left": left}

    def take_over(self, state: dict[str, Any]) -> None:
        assert isinstance(self.counter, LeasedSamples)
        self.barrier.number = state["met"]
        self.counter.adopt(state["lives"])
        self.counter.changed(0, self.counter.there())
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
    barrier = EvaluationBarrier(store, counter, timeout_s, lambda: tuple(range(size)))
    return OwnPace(rank, counter, barrier, ShutdownHandshake(store))
