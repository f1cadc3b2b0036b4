"""What passes on lines is counted, and each record holds what has passed since the one before."""

from __future__ import annotations

import pytest

from uneven.run.lines.traffic import TrafficBook, bytes_of_sum


def test_records_hold_what_has_passed_since_the_last_ones() -> None:
    book = TrafficBook()
    used, unused, again = book.open("used"), book.open("unused"), book.open("used")
    for traffic in (used, again):
        with traffic.waiting():
            traffic.sent_bytes += 100
    first = list(book.records(3, 7, 1.0))
    assert [(one.rank, one.iteration, one.line, one.exchanges, one.sent_bytes) for one in first] == [
        (3, 7, "used", 1, 100)
    ] * 2
    assert list(book.records(3, 8, 2.0)) == []
    used.sent_bytes += 5
    (later,) = book.records(3, 9, 3.0)
    assert (later.exchanges, later.sent_bytes, later.waited_s) == (0, 5, 0.0)
    assert (used.sent_bytes, unused.sent_bytes) == (105, 0)


def test_an_exchange_that_fails_is_none() -> None:
    traffic = TrafficBook().open("line")
    with pytest.raises(RuntimeError), traffic.waiting():
        raise RuntimeError
    assert (traffic.exchanges, traffic.waited_s) == (0, 0.0)


def test_each_of_two_sends_half_of_what_is_summed_up_and_half_of_the_sum() -> None:
    assert [bytes_of_sum(1000, members) for members in (1, 2, 4)] == [0, 1000, 1500]
