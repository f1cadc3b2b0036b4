"""Rules of exchanges through a parameter server, as one worker and its shard show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_served import N, Noting, Worker, X, step

from uneven.errors import PeerError
from uneven.policy.samples.paced import PacedSampler
from uneven.policy.samples.supply import SamplesWanted
from uneven.run.replicas.server import locate
from uneven.run.samples.async_sampling.sample_counter import StoredSampleCounter
from uneven.runtime.parameter_server import Client, ShardHost, ZmqLine
from uneven_bench.inside import inside

Begin = Callable[[str], Worker]
STEPS = -(-N // X)  # of an epoch
EACH_STEP = ["asp", "ssp:staleness=1", "easgd:every=1", "backup"]


class Watched:
    """What a worker asks its shard and its counter of samples, in the order in which it asks.

    Attributes:
        events: "more" when it has asked for the next samples, "update" and "through N" when it sends these.
        other: the connection of a second worker, once there is one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.sent: list[Any] = []  # the vectors of updates
        self.own: Client
        self.counter: StoredSampleCounter
        self.other: Client | None = None
        self._folder: Any = None
        self._through = 0
        self._quorum: int | None = None
        for name in ("push_pull", "exchange", "gradient", "movement"):
            monkeypatch.setattr(Client, name, self._update(getattr(Client, name)))
        connect, through, more, take = Client.__init__, Client.through, PacedSampler.more, StoredSampleCounter.take

        def connects(client: Client, rank: int, *given: Any, **how: Any) -> None:
            connect(client, rank, *given, **how)
            if rank == 0:
                self.own = client
                if self._folder is not None:
                    self._join()

        def reports(client: Client, epochs: int) -> None:
            if epochs != self._through:
                self._through = epochs
                self.events.append(f"through {epochs}")
            through(client, epochs)

        def asks(sampler: PacedSampler) -> bool:
            found = more(sampler)
            self.events.append("more")
            return found

        def takes(counter: StoredSampleCounter, *given: Any) -> Any:
            self.counter = counter
            return take(counter, *given)

        monkeypatch.setattr(Client, "__init__", connects)
        monkeypatch.setattr(Client, "through", reports)
        monkeypatch.setattr(PacedSampler, "more", asks)
        monkeypatch.setattr(StoredSampleCounter, "take", takes)

    @property
    def asked(self) -> list[str]:
        """The events without "more"."""
        return [one for one in self.events if one != "more"]

    def _update(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def sends(client: Client, at: int, arrays: Any, **how: Any) -> Any:
            if client is self.own:
                self.events.append("update")
                self.sent.append(torch.from_numpy(arrays[0].copy()))
                if self._quorum is not None:
                    how["quorum"] = self._quorum
            return send(client, at, arrays, **how)

        return sends

    def expect(self, monkeypatch: pytest.MonkeyPatch, quorum: int | None = None) -> None:
        """Let the shard of the next session serve two workers; the second one is away unless ``quorum`` has a value."""
        self._quorum = quorum

        def host(folder: Any, number: int, workers: int, **more: Any) -> ShardHost:
            self._folder = folder
            return ShardHost(folder, number, workers + 1, **more)

        monkeypatch.setattr(locate, "ShardHost", host)

    def _join(self) -> None:
        values = np.zeros(self.own.table.sizes, np.float32)
        self.other = Client(1, self.own.table, [values], ZmqLine(self._folder, 1, local=True), timeout_s=5.0)
        if self._quorum is None:
            self.other.leave()  # nothing waits for it
        else:
            self.other.pull().result()  # the shard has it: a quorum waits for it


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    made = Watched(monkeypatch)
    yield made
    if made.other is not None:
        made.other.close()


@pytest.fixture
def begin(watched: Watched) -> Iterator[Begin]:
    made: list[Worker] = []

    def begins(sync: str) -> Worker:
        made.append(Worker(sync))
        return made[-1]

    yield begins
    for one in made:
        one.session.close()


# ---------------------------------------------------------------- the next samples, and the end of an epoch
@pytest.mark.parametrize("sync", EACH_STEP)
def test_the_next_samples_are_taken_before_a_server_may_make_this_worker_wait(
    sync: str, watched: Watched, begin: Begin
) -> None:
    worker = begin(sync)
    worker.epoch()
    assert [one for one in watched.events if not one.startswith("through")] == ["more", "update"] * STEPS


@pytest.mark.parametrize("sync", EACH_STEP)
def test_an_epoch_is_reported_as_finished_after_the_update_of_its_last_samples(
    sync: str, watched: Watched, begin: Begin
) -> None:
    worker = begin(sync)
    worker.epoch()
    worker.epoch()
    epoch = ["update"] * STEPS
    assert watched.asked == [*epoch, "through 1", *epoch, "through 2"]


def test_an_epoch_is_reported_as_finished_when_others_have_taken_the_rest(watched: Watched, begin: Begin) -> None:
    worker = begin("asp")
    for place, (x, y) in enumerate(worker.loader):
        if place == 1:
            watched.counter.take(0, SamplesWanted(N, 1, N))
        step(worker.model, worker.optimizer, x, y)
    updates = watched.events.count("update")
    assert 2 <= updates < STEPS
    assert watched.asked == [*["update"] * updates, "through 1"]


def test_an_epoch_without_a_sample_is_reported_as_finished_at_its_end(watched: Watched, begin: Begin) -> None:
    worker = begin("asp")
    worker.epoch()
    sync: Any = inside(worker.session).sync
    sync.aggregator.claims = Noting()
    sync.aggregator.claims.over = 3  # the others had all samples of the epochs 1, 2 and 3
    sync.settle()
    worker.epoch()  # of requeued samples: it is reported as unfinished again
    epoch = ["update"] * STEPS
    assert watched.asked == [*epoch, "through 1", "through 4", "through 1", *epoch, "through 2"]


@pytest.mark.parametrize("sync", [*EACH_STEP, "shadow:load=1:easgd"])
def test_an_epoch_is_reported_as_finished_when_its_loop_is_left(sync: str, watched: Watched, begin: Begin) -> None:
    worker = begin(sync)
    leave_after(worker, 3)
    assert watched.asked == ["update", "update", "through 1"]
    leave_after(worker, 1)
    assert watched.asked[3:] == ["update", "through 2"]


def leave_after(worker: Worker, steps: int) -> None:
    """Leave the loop after so many steps; exchanges in the background land before the next step."""
    sync: Any = inside(worker.session).sync
    for place, (x, y) in enumerate(worker.loader, 1):
        sync._thread.wait()
        step(worker.model, worker.optimizer, x, y)
        if place == steps:
            break


# ---------------------------------------------------------------- what is owed when a loop is left
@pytest.mark.parametrize("sync", [*EACH_STEP, "shadow:load=1:easgd", "shadow:load=1:asp"])
@pytest.mark.parametrize("then", ["a step", "an evaluation"])
def test_what_is_owed_includes_exchanges_in_the_background_and_gradients_of_a_quorum(
    sync: str, then: str, watched: Watched, begin: Begin
) -> None:
    worker = begin(sync)
    leave_after(worker, 2)
    sync_of: Any = inside(worker.session).sync
    sync_of._thread.wait()
    assert watched.asked == ["update", "through 1"]
    if then == "a step":
        for place, (x, y) in enumerate(worker.loader):
            sync_of._thread.wait()
            assert watched.events.count("update") == 2 + place, "the owed one, once, and then one for each step"
            if place == 1:
                break
            step(worker.model, worker.optimizer, x, y)
    with worker.session.evaluation_model():
        pass
    made = [(one.gap, one.samples, one.iteration) for one in worker.records if one.gap]
    assert made[:2] == [(1, X, 0), (1, X, 1)]


def test_gradients_of_a_quorum_are_exchanged_after_the_optimizer_step(watched: Watched, begin: Begin) -> None:
    worker = begin("backup")
    worker.optimizer.register_step_post_hook(lambda *_: watched.events.append("step"))
    stepped: list[torch.Tensor] = []
    for x, y in worker.loader:
        step(worker.model, worker.optimizer, x, y)
        stepped.append(inside(worker.session).sync._replica.flat.read())
    assert [one for one in watched.asked if one != "through 1"] == ["step", "update"] * STEPS
    assert all(torch.equal(one, other) for one, other in zip(watched.sent, stepped, strict=True))


# ---------------------------------------------------------------- a quorum, and a lost worker
def test_a_contribution_with_a_nan_counts_as_one_of_a_quorum_and_is_dropped(
    watched: Watched, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.expect(monkeypatch, quorum=2)
    worker = begin("backup")
    with pytest.warns(RuntimeWarning, match="non-finite movement on rank 0"):
        means = contribute_nan(worker, watched)
    own = [one.numpy() for one in watched.sent if bool(one.isfinite().all())]
    assert np.allclose(means[0], (own[0] + 8.0) / 2)
    assert (means[1] == 9.0).all()
    assert np.allclose(means[2], (own[2] + 10.0) / 2), "the worker continues from the copy"
    assert [(one.late, one.dropped) for one in worker.records] == [(0, 0), (0, 1)]


def contribute_nan(worker: Worker, watched: Watched) -> list[Any]:
    """Contribute NaN to the second of three steps, and numbers as a second worker; return what that one gets."""
    replies, means = list[Any](), list[Any]()
    for place, (x, y) in enumerate(worker.loader):
        assert watched.other is not None
        means.append(np.full(watched.other.table.sizes, 8.0 + place, np.float32))
        replies.append(watched.other.gradient(place, [means[-1]], weight=X, quorum=2))
        step(worker.model, worker.optimizer, x, y)
        if place == 1:
            with torch.no_grad():
                next(worker.model.parameters()).fill_(torch.nan)
        if place == 3:
            break
    for reply, mean in zip(replies[:3], means[:3], strict=True):
        reply.into([mean])
    return means[:3]


class Numbers(Noting):
    """Calls ``gives`` and ``gave`` with the numbers of updates, as leases of samples get them."""

    def __init__(self, gives: Callable[[int], None], gave: Callable[[int], None]) -> None:
        self.number, self._gives, self._gave = 0, gives, gave

    def gives(self, update: int) -> None:
        self.number = update
        self._gives(update)

    def gave(self) -> None:
        self._gave(self.number)


@pytest.mark.parametrize("sync", [*EACH_STEP, "shadow:load=1:easgd", "shadow:load=1:asp"])
@pytest.mark.parametrize("end", ["gives", "gave"])
def test_of_a_lost_worker_the_shard_knows_the_number_of_the_last_update_that_has_arrived(
    sync: str, end: str, watched: Watched, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.expect(monkeypatch)
    worker = begin(sync)
    known: list[int] = []
    arrived: list[int] = []

    def dies(kind: str, number: int) -> None:
        if kind == end and len(arrived) == 2 and not known:
            assert watched.other is not None
            known.append(watched.other.remove_member(0).result().clock)

    def gave(number: int) -> None:
        arrived.append(number)
        dies("gave", number)

    inside(worker.session).sync.aggregator.claims = Numbers(lambda number: dies("gives", number), gave)
    with pytest.raises(PeerError):
        leave_after(worker, STEPS)
    assert known == arrived[-1:]
