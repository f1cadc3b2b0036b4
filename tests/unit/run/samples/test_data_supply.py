"""A worker asks for its samples ahead, as far as answers take, and what it holds is in no state lost or doubled."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import torch
from counters import Counters, Known, loaders
from crew import loader_of
from torch.utils.data import Dataset

from uneven.errors import PeerError
from uneven.policy.samples.supply import Interval, SamplesWanted, Supply
from uneven.run.samples.loader import BalancedLoader


class Worker:
    """One that takes a second for each batch, more or less, by a clock of its own."""

    ahead = True
    least = None

    def __init__(self, counts: Counter[int], answers_s: float, length: int, workers: int, random: Random) -> None:
        self.counts, self.answers_s, self.random = counts, answers_s, random
        self.now_s = self.waited_s = 0.0
        self.asked: list[tuple[int, int]] = []
        self.supply = Supply(self, workers, 1, lambda epoch: length, lambda: self.now_s)

    def take(self, epoch: int, wanted: SamplesWanted) -> _Answer:
        self.asked.append((epoch, wanted.samples))
        run = wanted.fresh(self.counts[epoch])
        self.counts[epoch] += wanted.samples
        return _Answer(self, run, self.answers_s * self.random.uniform(0.8, 1.2))

    def anew(self) -> None:
        self.counts.clear()

    def told(self, epoch: int) -> tuple[int, list[Interval]] | None:
        return None

    def trains(self, epoch: int, share: int) -> list[int]:
        """The next batch; of no position where the epoch is over."""
        front = self.supply.front(epoch, share, 0)
        if front is None:
            return []
        end = min(front[0] + share, front[1])
        self.supply.use(end - front[0], 1, share, 0)
        self.now_s += self.random.uniform(0.95, 1.05)
        return list(range(front[0], end))


class _Answer:
    def __init__(self, worker: Worker, value: Interval | None, took_s: float) -> None:
        self._worker, self._value, self.took_s = worker, value, took_s
        self._here_s = worker.now_s + took_s

    def done(self) -> bool:
        return self._worker.now_s >= self._here_s

    def result(self) -> Interval | None:
        if not self.done():
            self._worker.waited_s += self._here_s - self._worker.now_s
            self._worker.now_s = self._here_s
        return self._value


def played(answers_s: float, *, workers: int, length: int, epochs: int, share: int = 4) -> list[Worker]:
    """Each goes through all epochs and waits for nobody. Every position is used once in each."""
    counts: Counter[int] = Counter()
    random = Random(0)
    crew = [Worker(counts, answers_s, length, workers, random) for _ in range(workers)]
    used: dict[int, list[int]] = {epoch: [] for epoch in range(epochs)}
    epoch_of = dict.fromkeys(crew, 0)
    for one in crew:
        one.supply.begin(0)
    while running := [one for one in crew if epoch_of[one] < epochs]:
        one = min(running, key=lambda worker: worker.now_s)
        if batch := one.trains(epoch_of[one], share):
            used[epoch_of[one]] += batch
        else:
            epoch_of[one] += 1
            one.supply.begin(epoch_of[one])
    assert all(sorted(positions) == list(range(length)) for positions in used.values())
    return crew


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("answers_s", [0.1, 1.0, 5.0, 20.0])
def test_in_the_long_run_nobody_waits_for_answers_not_even_between_epochs(answers_s: float, workers: int) -> None:
    few, many = (played(answers_s, workers=workers, length=400 * workers, epochs=epochs) for epochs in (3, 23))
    waited_s = sum(one.waited_s for one in many) - sum(one.waited_s for one in few)
    assert waited_s < 0.002 * 2000 * workers


@pytest.mark.parametrize("answers_s", [100.0, 1000.0])
def test_answers_that_take_as_long_as_an_epoch_are_waited_for(answers_s: float) -> None:
    crew = played(answers_s, workers=2, length=200, epochs=6)
    assert min(one.waited_s for one in crew) > answers_s
    assert max(samples for one in crew for _, samples in one.asked) <= 100, "an equal part"


def test_where_answers_come_at_once_few_batches_are_held() -> None:
    crew = played(0.0, workers=2, length=1600, epochs=1)
    asked = [samples // 4 for one in crew for epoch, samples in one.asked if epoch == 0]
    assert max(asked) == 16
    assert asked[-1] == 1


def test_who_waits_for_the_others_anyway_takes_no_sample_ahead_of_its_turn() -> None:
    counts: Counter[int] = Counter()
    worker = Worker(counts, 0.0, 12, 3, Random(0))
    worker.ahead = False
    worker.supply.begin(0)
    for taken in range(1, 4):
        assert worker.trains(0, 4)
        assert worker.asked == [(0, 4)] * taken
    assert not worker.trains(0, 4)
    assert counts == {0: 12}, "nothing of the next epoch"


def test_a_long_pause_is_no_batch() -> None:
    counts: Counter[int] = Counter()
    worker = Worker(counts, 5.0, 4000, 2, Random(0))
    worker.supply.begin(0)
    for _ in range(50):
        worker.trains(0, 4)
    waited_s, worker.now_s = worker.waited_s, worker.now_s + 1000.0
    for _ in range(200):
        assert worker.trains(0, 4)
    assert worker.waited_s - waited_s < 10.0


def test_batches_that_readers_hold_are_held_and_to_make_them_is_no_step() -> None:
    """Sixteen are made within a moment before the first one is trained on."""
    counts: Counter[int] = Counter()
    worker = Worker(counts, 0.5, 4 * 400, 2, Random(0))
    worker.supply.begin(0)
    for step in range(150):
        for kept in range(16) if step == 0 else (15,):
            front = worker.supply.front(0, 4, kept)
            assert front is not None
            worker.supply.use(4, 1, 4, kept)
            worker.now_s += 1e-5
        worker.now_s += 1.0
    assert max(samples for _, samples in worker.asked) <= 16 * 4
    assert counts[0] <= 4 * (150 + 16 + 16)


def test_an_answer_that_does_not_come_is_an_error_where_it_is_needed() -> None:
    class Gone(Known):
        def result(self) -> Interval | None:
            raise PeerError("the store does not answer")

    class Silent(Counters):
        def take(self, epoch: int, samples: int) -> Known:
            return Gone(0)

    with pytest.raises(PeerError, match="does not answer"):
        Supply(Silent(), 2, 1, lambda epoch: 10, lambda: 0.0).front(0, 2, 0)


def trained(crew: list[BalancedLoader], random: Random, most: int = 1000) -> list[int]:
    streams = [iter(one) for one in crew]
    seen: list[int] = []
    while streams and most > 0:
        stream = random.choice(streams)
        batch = next(stream, None)
        if batch is None:
            streams.remove(stream)
            continue
        seen += batch[0].tolist()
        most -= 1
    return seen


def test_the_next_epoch_that_was_begun_to_be_taken_is_whole_after_a_resume() -> None:
    counter = Counters()
    crew = loaders(100, (2, 2, 2), counter)
    assert sorted(trained(crew, Random(0))) == list(range(100))
    assert counter.counts[0, 1] > 0, "asked ahead"
    for meeting in (True, False):
        counter.meeting = meeting
        states = [one.state_dict() for one in crew]
        assert all(sum(last - first for first, last in state["left"]) == 100 for state in states)
        resumed = loaders(100, (2, 2), Counters())
        for one in resumed:
            one.load_state_dict(states[0])
            assert one.epoch == 1
        assert sorted(trained(resumed, Random(1))) == list(range(100))


def test_outside_of_a_meeting_a_state_holds_what_its_worker_knows() -> None:
    counter = Counters()
    crew = loaders(100, (2, 2), counter)
    counter.meeting = False
    seen = trained(crew[:1], Random(0), 3)
    other = trained(crew[1:], Random(0), 3)
    left = {place for first, last in crew[0].state_dict()["left"] for place in range(first, last)}
    assert len(seen) == len(other) == 6
    assert len(left) < 100 - 12, "what the other one holds is not in it"
    counter.meeting = True
    left_of_all = [place for first, last in crew[0].state_dict()["left"] for place in range(first, last)]
    assert len(left_of_all) == len(set(left_of_all)) == 100 - 12
    assert left < set(left_of_all)


def test_where_workers_are_in_different_epochs_the_first_one_is_told() -> None:
    counter = Counters()
    crew = loaders(120, (4, 4), counter)
    slow = iter(crew[0])
    seen = [x for _ in range(3) for x in next(slow)[0].tolist()]
    ahead = trained(crew[1:], Random(0))
    next(iter(crew[1]))
    assert crew[1].epoch == 1
    states = [one.state_dict() for one in crew]
    assert [state["epoch"] for state in states] == [0, 0]
    assert states[0]["left"] == states[1]["left"]
    resumed = loaders(120, (4, 4, 4), Counters())
    for one in resumed:
        one.load_state_dict(states[1])
    assert sorted(seen + ahead + trained(resumed, Random(1))) == list(range(120))


def test_with_a_planned_order_a_resumed_epoch_leaves_nothing_out() -> None:
    crew = loaders(120, (4, 4), Counters())
    turns = zip((5, 2), [iter(one) for one in crew], strict=True)
    seen = [x for count, stream in turns for _ in range(count) for x in next(stream)[0].tolist()]
    planned = loader_of(
        dataset=crew[0].dataset, batch_size=8, rank=0, workers=1, seed=3, split_for=lambda iteration: (8,)
    )
    planned.load_state_dict(crew[0].state_dict())
    rest = [x for (batch,) in planned for x in batch.tolist()]
    assert set(seen + rest) == set(range(120))
    assert len(rest) < 120


@pytest.mark.parametrize("readers", [0, 1])
def test_an_epoch_whose_first_batch_could_not_be_read_is_whole_after_all(readers: int) -> None:
    data = Failing(40)
    one = loader_of(
        dataset=data, batch_size=4, rank=0, workers=1, seed=3, split_for=lambda iteration: (4,),
        counter=Counters(), num_workers=readers,
    )  # fmt: skip
    with pytest.raises(OSError, match="not there"):
        next(iter(one))
    data.failing = False
    assert sorted(x for batch in one for x in batch.tolist()) == list(range(40))


class Failing(Dataset[torch.Tensor]):
    def __init__(self, length: int) -> None:
        self.length, self.failing = length, True

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> torch.Tensor:
        if self.failing:
            raise OSError("not there")
        return torch.tensor(place)
