"""Who holds what was learnt from which samples, where workers meet some of the others only."""

from __future__ import annotations

from uneven.policy.samples.order import Portion
from uneven.policy.samples.requeued import RequeuedSamples, UnmergedSteps

FOUR = (0, 1, 2, 3)
ROWS, COLUMNS = ((0, 1), (2, 3)), ((0, 2), (1, 3))


def part(iteration: int) -> Portion:
    return Portion(iteration=iteration, epoch=0, start=8 * iteration, size=8, shares=(2, 2, 2, 2), members=FOUR)


def lost(held: UnmergedSteps, members: tuple[int, ...]) -> list[int]:
    return [step.worker for step in held.changed(members, {})]


def test_lost_with_the_last_that_holds_it() -> None:
    held = UnmergedSteps()
    held.add(part(0), FOUR)
    assert held.samples(1) == 2
    held.meet(ROWS)
    assert held.samples(1) == 2, "half of its own and half of its mate's"
    assert lost(held, (0, 2, 3)) == []
    assert lost(held, (2, 3)) == [0, 1]


def test_all_hold_it_in_the_end() -> None:
    held = UnmergedSteps()
    held.add(part(0), FOUR)
    held.meet(ROWS)
    held.meet(COLUMNS)
    assert lost(held, (3,)) == []
    assert held.samples(3) == 0


def test_a_newcomer_holds_what_it_was_given() -> None:
    held = UnmergedSteps()
    held.add(part(0), FOUR)
    held.meet(ROWS)
    assert held.changed((0, 1, 2, 3, 4), {4: 0}) == []
    other = UnmergedSteps()
    other.take_up(held.state())
    assert lost(other, (2, 3, 4)) == []
    assert lost(other, (2, 3)) == [0, 1]


def test_a_newcomer_that_was_not_given_it_holds_nothing_of_its_first_donor() -> None:
    held = UnmergedSteps()
    held.add(part(0), FOUR)
    held.meet(ROWS)
    assert held.changed((0, 1, 2, 3, 4), {4: 2}) == []
    assert {step.worker for step in held.changed((0, 1, 4), {4: 0})} == {2, 3}, "its first donor is gone"
    assert held.samples(4) == 0, "all that are left hold the others"


def test_samples_come_again_when_nobody_holds_them() -> None:
    returned = RequeuedSamples(FOUR)
    returned.drawn(part(0))
    returned.exchanged(0, FOUR, ROWS)
    returned.changed(1, (0, 2, 3), -1)
    assert returned.waiting(1) == 0
    returned.drawn(Portion(iteration=1, epoch=0, start=8, size=6, shares=(2, 2, 2), members=(0, 2, 3)))
    assert returned.spoken_for(0, 1) == 2 + 4, "what it has drawn, and its row's samples, which it alone holds"
    returned.changed(2, (2, 3), -1)
    assert returned.waiting(2) == 4 + 2, "of 0 and 1, and what 0 had in hand"
    assert sorted(returned.take(2, 9)) == [(0, 2), (2, 4), (8, 10)]


def test_nothing_is_held_by_some_once_all_have_met() -> None:
    returned = RequeuedSamples(FOUR)
    returned.drawn(part(0))
    returned.exchanged(0, FOUR, ROWS)
    returned.exchanged(0, FOUR)
    returned.changed(1, (3,), -1)
    assert returned.waiting(1) == 0
