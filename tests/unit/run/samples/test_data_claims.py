"""Who has which samples where workers take them at their own pace, and some are lost: each counts, and counts once."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from uneven.policy.samples.leases import HeldSamples, Run, SampleLeases, book_of, holding_of, merged, without
from uneven.policy.samples.supply import SamplesWanted

N = 200


class Played:
    """Workers with a book and holdings as texts, and somebody who keeps what they give."""

    def __init__(self, random: Random) -> None:
        self.random, self.book = random, ""
        self.holdings: dict[int, str] = {0: "", 1: "", 2: ""}
        self.arrived: Counter[int] = Counter()
        self.used: Counter[int] = Counter()

    def take(self, worker: int, *, noted: bool = True) -> bool:
        before = book_of(self.book)
        book, run = before.take(worker, N, SamplesWanted(self.random.randint(1, 9), 2, N).run)
        self.book = book.text()
        if run is not None and noted:
            holding = holding_of(self.holdings[worker]).took(0, book.taken[str(worker)][0], run)
            self.holdings[worker] = holding.text()
        return run is not None

    def give(self, worker: int, *, arrives: bool = True, noted: bool = True) -> None:
        holding = holding_of(self.holdings[worker])
        runs = [run for run in holding.held.get("0", ()) if self.random.random() < 0.7]
        holding = holding.gives(self.arrived[worker] + 1, {0: runs})
        self.holdings[worker] = holding.text()
        if arrives:
            self.arrived[worker] += 1
            self.used.update(one for run in runs for one in range(*run))
        if noted:
            self.holdings[worker] = holding.gave().text()

    def lose(self, worker: int) -> None:
        holding = holding_of(self.holdings.pop(worker))
        for _ in range(2):  # each of the others does so
            book = book_of(self.book)
            self.book = book.leave(worker, holding.undone(0, worker, book, self.arrived[worker])).text()


@pytest.mark.parametrize("seed", range(40))
def test_each_sample_is_given_once_whoever_is_lost_and_when(seed: int) -> None:
    random = Random(seed)
    run = Played(random)
    newest = 2
    while True:
        worker = random.choice([*run.holdings])
        if random.random() < 0.06:
            end = random.choice(["taken", "given", "arrived", "seen"])
            if end == "taken":  # and died before it had noted that
                run.take(worker, noted=False)
            else:  # "seen" to arrive by this worker alone: its machine lost its power before the others had it
                run.give(worker, arrives=end == "arrived", noted=end == "seen")
            run.lose(worker)
            newest += 1
            run.holdings[newest] = ""
        elif random.random() < 0.5:
            run.take(worker)
        else:
            run.give(worker)
        book = book_of(run.book)
        held = any(holding_of(text).undone(0, one, book) for one, text in run.holdings.items())
        if book.next == N and not book.again and not held:
            break
    assert run.used == Counter(range(N))


def test_what_comes_again_goes_first_and_not_to_one_that_was_taken_for_gone() -> None:
    book, run = SampleLeases().take(1, N, SamplesWanted(10, 1, N).run)
    assert run == (0, 10)
    book = book.leave(1, [(4, 10)])
    assert book.leave(1, [(0, 10)]) == book, "it was gone already"
    assert book.take(1, N, SamplesWanted(10, 1, N).run) == (book, None)
    book, run = book.take(2, N, SamplesWanted(4, 1, N).run)
    assert run == (4, 8)
    book, run = book.take(2, N, SamplesWanted(4, 1, N).run)
    assert run == (8, 10)
    assert book.take(2, N, SamplesWanted(4, 1, N).run)[1] == (10, 14)


def test_no_rest_is_too_small_for_a_batch() -> None:
    book, runs = SampleLeases(), list[Run]()
    while True:
        book, run = book.take(0, 23, SamplesWanted(5, 4, 23).run)
        if run is None:
            break
        runs.append(run)
    assert runs == [(0, 5), (5, 10), (10, 15), (15, 23)]


def test_what_was_held_of_an_epoch_that_is_over_is_forgotten() -> None:
    holding = HeldSamples().took(0, 1, (0, 4)).took(1, 1, (0, 4)).since(1)
    assert holding.held == {"1": ((0, 4),)}
    assert holding.times == {"1": 1}
    book = SampleLeases(next=N, taken={"5": (1, (0, 4))})
    assert holding.undone(0, 5, book) == (), "as it has been through with that epoch"
    assert holding.undone(1, 5, book) == ((0, 4),)
    assert HeldSamples().undone(0, 5, book) == ((0, 4),), "taken, and lost before it was noted"


def test_runs() -> None:
    assert without([(0, 10), (20, 30)], [(2, 4), (8, 25)]) == ((0, 2), (4, 8), (25, 30))
    assert merged([(4, 6), (0, 4), (8, 8), (7, 9)]) == [(0, 6), (7, 9)]


@pytest.mark.parametrize("text", ["[]", '{"next": -1}', '{"again": [[1]]}'])
def test_a_damaged_book_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        book_of(text)
