"""Every sample of an epoch is used once, whoever is lost when; whatever the workers have drawn ahead."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from uneven.policy.core.apportion import proportional
from uneven.policy.core.views import Limits
from uneven.policy.samples.loader_state import read_again
from uneven.policy.samples.order import Cursor, EpochPlan, Portion
from uneven.policy.samples.requeued import RequeuedSamples, runs

X, LENGTH = 12, 100


class Worker:
    """One worker's view, that draws so many parts ahead."""

    def __init__(self, members: tuple[int, ...], ahead: int, drop_last: bool = False) -> None:
        self.returned = RequeuedSamples(members)
        self._splits = [(0, members)]
        self.plan = EpochPlan(
            batch_size=X, workers=0, split_for=self._split, changing=self.returned, drop_last=drop_last
        )
        self.ahead = ahead
        self.drawn: list[Portion] = []
        self.cursor = Cursor()
        self.returned.start(self.cursor)

    def _split(self, iteration: int) -> tuple[int, ...]:
        size = len(next(members for first, members in reversed(self._splits) if first <= iteration))
        return proportional([1.0] * size, X, Limits.uniform(size, X))

    def next(self) -> Portion | None:
        while len(self.drawn) <= self.ahead and (part := self.plan.part(self.cursor, LENGTH - self.cursor.start)):
            self.drawn.append(part)
            self.cursor = self.cursor.after(part)
        return self.drawn.pop(0) if self.drawn else None

    def changed(self, border: int, members: tuple[int, ...], exchanging: int) -> None:
        self._splits = [one for one in self._splits if one[0] < border or one[0] == 0] + [(border, members)]
        self.returned.changed(border, members, exchanging)


def lose(workers: dict[int, Worker], members: tuple[int, ...], lost: list[int], at: int) -> tuple[int, ...]:
    """One after the other, in the exchange of an iteration, or after it (−1)."""
    for one in lost:
        if one in members and len(members) > 1:
            members = tuple(other for other in members if other != one)
            border = max(workers[other].returned.newest for other in members) + 1
            for other in members:
                workers[other].changed(border, members, at)
    return members


@given(
    ahead=st.integers(0, 4),
    losses=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=3),
)
def test_each_sample_once_and_all_workers_alike(ahead: int, losses: list[tuple[int, int, bool]]) -> None:
    members: tuple[int, ...] = (0, 1, 2, 3)
    workers = {one: Worker(members, ahead) for one in members}
    used: Counter[int] = Counter()
    while True:
        parts = {one: workers[one].next() for one in members}
        part = parts[members[0]]
        assert all(other == part for other in parts.values())
        if part is None:
            break
        lost = [(one, after) for at, one, after in losses if at == part.iteration]
        members = lose(workers, members, [one for one, after in lost if not after], part.iteration)
        for one in members:
            workers[one].returned.exchanged(part.iteration, members)
            used.update(part.span(one))
        members = lose(workers, members, [one for one, after in lost if after], -1)
    assert used == Counter(range(LENGTH))


def test_what_is_left_goes_into_a_checkpoint() -> None:
    worker = Worker((0, 1, 2), 0)
    part = worker.next()
    assert part is not None
    worker.changed(1, (0, 2), part.iteration)
    worker.returned.exchanged(part.iteration, (0, 2))
    left = worker.returned.left(worker.cursor)
    assert left == [[4, 8]]
    other = RequeuedSamples((0,))
    other.resume(worker.cursor, left)
    assert other.take(1, X) == ((4, 8),)
    assert other.waiting(1) == 0


def test_more_than_a_batch_comes_again_in_several() -> None:
    returned = RequeuedSamples((0,))
    returned.resume(Cursor(0, 50, 3), [[0, 10], [20, 30]])
    assert returned.take(3, 12) == ((0, 10), (20, 22))
    assert returned.take(4, 12) == ((22, 30),)


def test_samples_that_come_again_take_no_place_of_fresh_ones_under_fixed_shares() -> None:
    returned, cursor = RequeuedSamples((0,)), Cursor(0, 16, 2)
    returned.resume(cursor, [[3, 6]])
    returned.start(cursor)
    plan = EpochPlan(batch_size=8, workers=1, split_for=lambda _: (8,), settled=lambda: True, changing=returned)
    used = Counter(place for part in plan.walk(cursor, 40) for place in part.span(0))
    assert used == Counter([3, 4, 5, *range(16, 40)])


def test_after_two_losses_a_checkpoint_has_each_sample_once() -> None:
    worker = Worker((0, 1, 2, 3), 0)
    worker.next()
    worker.changed(1, (0, 1), 0)
    worker.returned.exchanged(0, (0, 1))
    start, part = worker.cursor, worker.next()
    assert part is not None
    assert part.again == ((6, 9), (9, 12))
    worker.changed(2, (1,), 0)
    assert part.span(0) == [*range(6, 12)], "these are waiting, too"
    left = worker.returned.left(start, [part])
    assert read_again({"again": left}, start) == [(6, 12)]


def test_a_newcomer_knows_the_members_of_a_part_that_is_drawn_again() -> None:
    one = Worker((0, 1), 2)
    one.next()
    one.changed(3, (0, 1, 4), -1)
    new = RequeuedSamples((0, 1))
    new.take_up(json.loads(json.dumps(one.returned.state())))
    new.start(Cursor(1, 0, 1))  # all have left the loop in iteration 0
    assert [new.members(k) for k in (1, 2, 3)] == [one.returned.members(k) for k in (1, 2, 3)]
    assert new.members(1) == (0, 1)


def test_neighbours_make_a_run() -> None:
    assert runs([3, 4, 5, 9, 1]) == [(3, 6), (9, 10), (1, 2)]
    assert runs([]) == []


@given(early=st.integers(0, 3), again=st.booleans(), drop_last=st.booleans())
def test_who_was_through_before_it_heard_of_a_loss_and_who_was_not_end_their_passes_alike(
    early: int, again: bool, drop_last: bool
) -> None:
    """Where replicas are merged now and then, one may be steps ahead, and at the end of a pass they all merge."""
    members = (0, 1, 2)
    ahead, behind = Worker(members, 0, drop_last), Worker(members, 0, drop_last)
    passes: list[list[list[Portion]]] = [[], []]
    for number in range(4):
        if number and not ahead.returned.waiting(ahead.cursor.iteration):
            break
        for one in (ahead, behind):
            one.returned.start(one.cursor)
        walks = [one.plan.walk(one.cursor, LENGTH) for one in (ahead, behind)]
        whole = list(walks[0])
        if not whole:
            assert drop_last
            assert list(walks[1]) == []
            break
        lost = number == 0 or (again and number == 1)
        known = [next(walks[1]) for _ in range(max(0, len(whole) - 1 - early))] if lost else []
        if lost:
            for one in (ahead, behind):
                one.changed(whole[-1].iteration + 1, members[: 2 - number], -1)
        known += walks[1]
        passes[0].append(whole)
        passes[1].append(known)
        assert [part.iteration for part in known] == [part.iteration for part in whole]
        assert known == whole
        ahead.cursor = behind.cursor = ahead.cursor.after(whole[-1])
    assert len(passes[0]) == 2 + again
    assert passes[0] == passes[1]
