"""From what members say follows who goes on, and who has to be given what."""

from __future__ import annotations

import pytest

from uneven.core.membership import (
    Generation,
    Statement,
    first_generation,
    generation_of,
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


@pytest.mark.parametrize("text", ["{}", '{"exchanges": -1, "drawn": 0}', '{"exchanges": 1.5, "drawn": 0}', "[", "3"])
def test_what_is_no_statement_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        statement_of(text)


def test_out_and_in_again() -> None:
    statement = said(5, by=2, between=True)
    assert statement_of(statement.text()) == statement
    generation = after(first_generation(2), {0: said(5, between=True)}, {1: "killed"}, 5)
    assert generation_of(generation.text()) == generation
