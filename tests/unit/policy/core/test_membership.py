"""From what members say follows who goes on, and who has to be given what."""

from __future__ import annotations

import pytest

from uneven.policy.core.membership import (
    Generation,
    Statement,
    first_generation,
    generation_of,
    replaced,
    statement_of,
    successor,
)


def said(exchanges: int, **more: object) -> Statement:
    return Statement(exchanges=exchanges, drawn=exchanges, **more)  # type: ignore[arg-type]


def after(old: Generation, statements: dict[int, Statement], gone: dict[int, str], *asking: int) -> Generation:
    return successor(old, statements, gone, {one: {"lower": 1} for one in asking}, most=4)


def test_nobody_has_the_sum_so_all_begin_anew() -> None:
    new = after(first_generation(3), {0: said(5), 2: said(5)}, {1: "killed"})
    assert (new.members, new.exchange, new.donor, new.border) == ((0, 2), 5, None, 6)
    assert (new.left, new.why) == ((1,), {"1": "killed"})


def test_who_has_the_sum_gives_it_to_those_that_lack_it() -> None:
    new = after(first_generation(4), {0: said(5), 2: said(6, by=3), 3: said(6)}, {1: "killed"})
    assert (new.exchange, new.donor, new.by) == (6, 2, 3)


def test_one_that_leaves_is_no_donor() -> None:
    new = after(first_generation(3), {0: said(5), 1: said(6, leaving=True), 2: said(5)}, {})
    assert (new.members, new.exchange, new.donor) == ((0, 2), 5, None)


def test_newcomers_come_between_steps_only() -> None:
    between = {one: said(5, between=True) for one in range(3)}
    assert after(first_generation(3), between, {}, 7).members == (0, 1, 2, 7)
    assert after(first_generation(3), between | {1: said(5)}, {}, 7).members == (0, 1, 2)
    assert after(first_generation(3), between | {1: said(4, between=True)}, {}, 7).members == (0, 1, 2)


def test_no_more_than_there_may_be_and_first_come_first_served() -> None:
    between = {one: said(5, between=True) for one in range(3)}
    new = after(first_generation(3), between, {}, 9, 8)
    assert (new.members, set(new.came)) == ((0, 1, 2, 9), {"9"})


def test_a_newcomer_without_state_waits_with_the_others_or_asks_again() -> None:
    old = after(first_generation(2), {0: said(5, between=True), 1: said(5, between=True)}, {}, 3)
    statements = {0: said(5, between=True), 3: said(0, between=True, new=True)}
    assert after(old, statements, {1: "killed"}).members == (0, 3)
    assert after(old, statements | {0: said(5)}, {1: "killed"}).members == (0,)


def test_of_members_that_all_leave_one_stays_until_a_newcomer_has_the_state() -> None:
    leave = {one: said(5, between=True, leaving=True) for one in range(2)}
    new = after(first_generation(2), leave, {}, 3)
    assert (new.members, set(new.came), new.left) == ((0, 3), {"3"}, (1,))
    still = {0: said(5, between=True, leaving=True), 3: said(0, between=True, new=True)}
    assert after(new, still, {}).members == (0, 3), "it has not received the state yet"
    assert after(new, {0: still[0]}, {3: "killed"}).members == ()
    assert after(first_generation(2), leave | {1: said(5, between=True)}, {}, 3).members == (1, 3)
    assert successor(first_generation(1), {0: leave[0]}, {}, {3: {}}, most=1).members == (3,), "there is no room"


def where_nobody_owes(
    old: Generation, gone: dict[int, str], *asking: int, most: int = 4, **those: tuple[int, ...]
) -> Generation | None:
    return replaced(old, gone, {one: {"lower": one} for one in asking}, most, **those)


def test_without_statements_no_generation_follows_where_nobody_comes_or_goes() -> None:
    old = first_generation(3)
    assert where_nobody_owes(old, {}) is None
    assert where_nobody_owes(old, {7: "killed"}) is None, "worker 7 is no member"
    assert where_nobody_owes(old, {}, 5, most=3) is None, "there is no room"


def test_without_statements_places_of_the_gone_and_of_leavers_go_to_those_that_asked_first() -> None:
    new = where_nobody_owes(first_generation(3), {1: "killed", 8: "killed"}, 9, 6, 7, most=3, leaving=(2,))
    assert new is not None
    assert (new.number, new.members, new.left) == (1, (0, 6, 9), (1, 2))
    assert new.came == {"9": {"lower": 9}, "6": {"lower": 6}}
    assert new.why == {"1": "killed", "2": "it got a request to leave"}


def test_without_statements_one_that_is_killed_while_it_leaves_is_told_as_killed() -> None:
    new = where_nobody_owes(first_generation(2), {1: "killed"}, leaving=(1,))
    assert new is not None
    assert new.why == {"1": "killed"}


def test_without_statements_those_who_lack_the_state_introduce_themselves_again() -> None:
    old = where_nobody_owes(first_generation(2), {}, 2, 3)
    assert old is not None
    new = where_nobody_owes(old, {0: "killed", 2: "killed"}, 4, lacking=(2, 3))
    assert new is not None
    assert (new.members, new.came) == ((1, 3, 4), {"3": {"lower": 3}, "4": {"lower": 4}})
    later = where_nobody_owes(new, {1: "killed"})
    assert later is not None
    assert later.came == {}, "nobody lacks it any more"


def test_without_statements_exchanges_and_borders_are_as_they_were() -> None:
    old = after(first_generation(3), {0: said(5), 2: said(6)}, {1: "killed"})
    assert (old.exchange, old.donor, old.border) == (6, 2, 7)
    new = where_nobody_owes(old, {2: "killed"})
    assert new is not None
    assert (new.number, new.members) == (2, (0,))
    assert (new.exchange, new.border, new.donor) == (6, 7, None), "nobody owes a sum"


def test_without_statements_everybody_may_go_and_more_than_there_may_be_may_stay() -> None:
    nobody = where_nobody_owes(first_generation(2), {0: "killed"}, leaving=(1,))
    assert nobody is not None
    assert (nobody.members, nobody.left) == ((), (0, 1))
    fewer = where_nobody_owes(first_generation(4), {3: "killed"}, 5, most=2)
    assert fewer is not None
    assert fewer.members == (0, 1, 2), "nobody is put out, and nobody is let in"


def test_without_statements_one_that_has_the_state_stays_for_one_that_asks() -> None:
    kept = where_nobody_owes(first_generation(1), {}, 4, leaving=(0,))
    assert kept is not None
    assert kept.members == (0, 4)
    assert where_nobody_owes(kept, {}, leaving=(0,), lacking=(4,)) is None, "it does not have the state yet"
    alone = where_nobody_owes(kept, {}, leaving=(0,))
    assert alone is not None
    assert alone.members == (4,)


def test_without_statements_a_member_that_still_asks_is_one_member() -> None:
    old = Generation(number=1, members=(0, 5), came={"5": {}}, why={})
    assert where_nobody_owes(old, {}, 5) is None


@pytest.mark.parametrize("text", ["{}", '{"exchanges": -1, "drawn": 0}', '{"exchanges": 1.5, "drawn": 0}', "[", "3"])
def test_what_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        statement_of(text)


def test_out_and_in_again() -> None:
    statement = said(5, by=2, between=True)
    assert statement_of(statement.text()) == statement
    generation = after(first_generation(2), {0: said(5, between=True)}, {1: "killed"}, 5)
    assert generation_of(generation.text()) == generation
