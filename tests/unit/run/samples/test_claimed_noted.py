"""What an update holds is known to the store before anything of the update is sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from threading import Event, Thread, current_thread
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from uneven.policy.samples.order import Portion, epoch_order
from uneven.policy.samples.paced import PacedSampler
from uneven.policy.samples.supply import SamplesWanted
from uneven.run.samples.async_sampling.evaluation_barrier import EvaluationBarrier
from uneven.run.samples.async_sampling.leased_samples import LeasedSamples
from uneven.run.samples.async_sampling.session_store import SessionStore


class Asked:
    """A store that writes down what it is asked, as one behind a connection is, which answers no write."""

    def __init__(self, store: Any) -> None:
        self._store, self.calls = store, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.calls.append(name)
            return getattr(self._store, name)(*given)

        return call


def test_an_update_begins_when_its_note_is_there() -> None:
    store = SessionStore(0, 1, HashStore())
    asked = store._store = Asked(store._store)  # type: ignore[assignment]
    claims = LeasedSamples(store, 1.0, ahead=False, members=(0,), tend=lambda: True, there=lambda: (0,))
    asked.calls.clear()
    claims.gives(1)
    assert asked.calls == ["set", "check"]  # the answer to the second shows that the first is done
    claims.aside()
    assert asked.calls[2:] == ["set"]  # nothing hangs on it


@pytest.fixture
def pair() -> Iterator[tuple[LeasedSamples, LeasedSamples]]:
    """Two workers with one store."""
    store = HashStore()

    def claims(rank: int) -> LeasedSamples:
        own = SessionStore(rank, 2, store)
        return LeasedSamples(own, 5.0, ahead=False, members=(0, 1), tend=lambda: True, there=lambda: (0, 1))

    made = claims(0), claims(1)
    yield made
    for one in made:
        one.stop()


@pytest.mark.parametrize(("arrived", "again"), [(1, [(4, 20)]), (2, [(12, 20)])])
def test_of_a_lost_worker_the_samples_that_no_arrived_update_covers_are_requeued(
    arrived: int, again: list[tuple[int, int]], pair: tuple[LeasedSamples, LeasedSamples]
) -> None:
    other, lost = pair
    parts = [taken(lost, size) for size in (4, 4, 4, 8)]
    lost.learnt(parts[0])
    lost.gives(1)
    lost.gave()
    lost.learnt(parts[1])
    lost.learnt(parts[2])
    lost.gives(2)  # on its way; the last of its batches is in no update
    for _ in range(2):
        other.lost(1, arrived)
        assert [*other._book(0).again] == again, "once, however often the loss is reported"
    assert taken(other, 30).start == again[0][0], "requeued samples go first"
    assert lost.take(0, wanted(4)).result() is None


def test_a_take_while_a_loss_is_recorded_is_not_made_twice(
    pair: tuple[LeasedSamples, LeasedSamples], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that records a loss has the store's answer, and another one takes samples before it continues."""
    claims, lost = pair
    taken(claims, 4)
    taken(lost, 4)
    swap, answered, go_on = claims._store.swap, Event(), Event()

    def late(*given: str) -> str:
        found = swap(*given)
        if current_thread() is recorder and '"gone": [1]' in found and not answered.is_set():
            answered.set()
            go_on.wait(0.3)
        return found

    monkeypatch.setattr(claims._store, "swap", late)
    recorder = Thread(target=claims.lost, args=(1, 0))
    recorder.start()
    answered.wait(5)
    runs = [taken(claims, 2)]
    go_on.set()
    recorder.join()
    runs += [taken(claims, 2), taken(claims, 2)]
    assert [run.start for run in runs] == [4, 6, 8]


def test_samples_of_one_that_hangs_in_an_evaluation_are_waited_for_and_come_again() -> None:
    store, there, looks = HashStore(), [0, 1], []

    def tend() -> bool:
        looks.append(one.evaluations)
        if looks.count(1) == 3:  # it sends no sign of life
            there.remove(1)
            one.lost(1, 0)
        return True

    one, other = (
        LeasedSamples(
            SessionStore(rank, 2, store), 5.0, ahead=False, members=(0, 1), tend=tend, there=lambda: tuple(there)
        )
        for rank in range(2)
    )
    one.sampler = SimpleNamespace(pass_over=0, cut=0, unused=())  # type: ignore[assignment]
    taken(other, 4)
    other.held()
    assert one.waiting(0) == 0, "the other waits for this one"
    one.held()
    one.forget()
    assert one.waiting(0) == 1
    assert one._book(0).again == ((0, 4),)
    for claims in (one, other):
        claims.stop()


def test_a_second_checkpoint_of_a_resumed_epoch_has_positions_of_the_epoch() -> None:
    store = SessionStore(0, 1, HashStore())
    claims = LeasedSamples(store, 1.0, ahead=False, members=(0,), tend=lambda: True, there=lambda: (0,))
    order = partial(epoch_order, length=100, seed=0, shuffle=False)
    claims.sampler = PacedSampler(
        rank=0, shares_for=lambda _: (8,), order_of=order, usable=100, lower=1, counter=claims, workers=1,
        now=time.perf_counter, unused=tuple,
    )  # fmt: skip
    claims.sampler.resume(0, [(50, 100)])
    assert next(iter(claims.sampler)) == [*range(50, 58)]  # in hand, not trained on
    assert claims.sampler.place(0)["left"] == [[50, 100]]
    claims.stop()


def test_a_worker_that_is_lost_as_reports_are_read_does_not_end_an_evaluation() -> None:
    there = iter([(0, 1), (0,)])
    store = SessionStore(0, 2, HashStore())
    claims = LeasedSamples(store, 1.0, ahead=False, members=(0, 1), tend=lambda: True, there=lambda: (0, 1))
    barrier = EvaluationBarrier(store, claims, 1.0, lambda: next(there))
    barrier.arrive()
    assert barrier.meet() == [1]
    claims.stop()


def wanted(samples: int) -> SamplesWanted:
    return SamplesWanted(samples, 1, 100)


def taken(claims: LeasedSamples, samples: int) -> Portion:
    run = claims.take(0, wanted(samples)).result()
    assert run is not None
    size = run[1] - run[0]
    return Portion(iteration=run[0], epoch=0, start=run[0], size=size, shares=(size,))
