"""Steps of a loop without an optimizer."""

from __future__ import annotations

import pytest

from uneven.why.loop_period import period


@pytest.mark.parametrize(
    ("seen", "length"),
    [
        ("abcabcabcabcabcabcabcabc", 3),
        ("xyzaaaaaaaaaaaaaaaaaaaaa", 1),
        ("startabababababababababab", 2),
        ("abcdefghijklmnopqrstuvwx", 0),
    ],
)
def test_the_shortest_pattern_of_the_second_half(seen: str, length: int) -> None:
    assert period(seen) == length
