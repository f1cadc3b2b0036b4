"""Idioms of public scripts × policies × shares: the weights of one process, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from idiom_base import IDIOMS, OWN_PACE, Agrees, Differs, Either, Equal, Expect, N, Refused
from idiom_page import pages
from idiom_runs import COPIED, RUN, Meeting, Told, expected, of_name, play, verdict
from known import KNOWN
from torch.distributed import distributed_c10d as c10d

import uneven
from uneven.errors import ConfigError
from uneven.testing.ranks import RankContext, ranks

ROOT = Path(__file__).parents[2]


FIRST = ("bsp", "moving")
"""The cell that shows nearly all of what any cell shows; ``tests/system/idioms`` has the others."""


@pytest.mark.timeout(300)  # a hundred idioms; a minute on a busy machine
@pytest.mark.parametrize(("policy", "shares"), [FIRST])
def test_the_matrix(policy: str, shares: str) -> None:
    check_cell(policy, shares, [*IDIOMS, *(name + COPIED for name in ("momentum", "sparse_embeddings"))])


def check_cell(policy: str, shares: str, names: list[str] | None = None) -> None:
    """Train every idiom in this cell, or these.

    Raises:
        AssertionError: names the idioms that came out wrong.
    """
    complaints = compared(play(policy, shares, names), policy, shares, KNOWN)
    assert not complaints, f"{policy}, {shares} shares:\n" + "\n".join(complaints)


def compared(wrong: dict[str, str], policy: str, shares: str, known: dict[tuple[str, str, str], str]) -> list[str]:
    """What is wrong and not known, and what is known and not wrong any more."""
    complaints = []
    for name, what in wrong.items():
        point = known.get((name, policy, shares))
        if what and point is None:
            complaints.append(f"{name}: {what} (expected: {expected(of_name(name), policy, shares)})")
        elif point is not None and not what:
            complaints.append(f"{name}: in order now, so take it out of KNOWN ({point})")
    return complaints


def test_what_is_mended_has_to_leave_the_table() -> None:
    known = {("plain_loop", "bsp", "even"): "point 0"}
    assert compared({"plain_loop": "off by 1"}, "bsp", "even", known) == []
    assert compared({"plain_loop": ""}, "bsp", "even", known) == [
        "plain_loop: in order now, so take it out of KNOWN (point 0)"
    ]
    assert compared({"plain_loop": "off by 1"}, "bsp", "static", known) == [
        "plain_loop: off by 1 (expected: Equal(tolerance=1e-12, warns=''))"
    ]


def row(*values: float, error: str = "", warned: str = "", taken: tuple[int, int] = (0, N)) -> dict[str, Any]:
    return {"values": list(values), "own": 1, "error": error, "warned": warned, "taken": [(0, *taken)]}


@pytest.mark.parametrize(
    ("expect", "told", "what"),
    [
        (Equal(), [row(1.0), row(1.0, taken=(0, 0))], ""),
        (Equal(), [row(1.0), row(1.0 + 1e-9, taken=(0, 0))], "off by 1.0e-09"),
        (Equal(), [row(1.0), row(float("nan"), taken=(0, 0))], "off by inf"),
        (Equal(), [row(1.0, taken=(0, N - 1))], "epoch 0: 0 samples twice, 1 never"),
        (Equal(), [row(1.0), row(1.0)], f"epoch 0: {N} samples twice, 0 never"),
        (Equal(), [row(1.0), row(error="KeyError: x")], "ranks [1]: KeyError: x"),
        (Agrees(""), [row(2.0, 5.0), row(2.0, 6.0, taken=(0, 0))], ""),
        (Agrees(""), [row(2.0), row(2.0 + 1e-15, taken=(0, 0))], "ranks evaluate different models"),
        (Agrees(""), [row(float("inf"))], "not finite"),
        (Differs(""), [row(1.1)], ""),
        (Differs("", warns="a sum"), [row(1.1), row(1.1, warned="it is a sum", taken=(0, 0))], ""),
        (Differs("", warns="a sum"), [row(1.1)], "warned in other words than 'a sum': ''"),
        (Equal(), [row(1.0, warned="a sum")], "warned in other words than '': 'a sum'"),
        (Differs(""), [row(1.0)], "equal to one process after all: say so in the table and in docs/limits.md"),
        (Refused("wrapped"), [row(error="ConfigError: is wrapped"), row(error="PeerError: rank 0 is gone")], ""),
        (Refused("wrapped"), [row(error="is wrapped"), row(1.0)], "not refused on ranks [1]; elsewhere: "
         "ranks [0]: is wrapped"),
        (Either("hand"), [row(1.0)], ""),
        (Either("hand"), [row(2.0)], "off by 1.0e+00"),
        (Either("hand"), [row(error="in hand"), row(error="PeerError")], ""),
        (Either("hand", Agrees("")), [row(2.0, 5.0), row(2.0, 6.0, taken=(0, 0))], ""),
        (Either("hand", Agrees("")), [row(2.0), row(3.0, taken=(0, 0))], "ranks evaluate different models"),
        (Either("hand"), [row(error="in hand"), row(1.0)], "not refused on ranks [1]; elsewhere: ranks [0]: in hand"),
        (Refused("wrapped"), [row(error="oh")], "refused in other words than 'wrapped': ranks [0]: oh"),
    ],
)  # fmt: skip
def test_the_judge_finds(expect: Expect, told: list[dict[str, Any]], what: str) -> None:
    idiom = replace(IDIOMS["plain_loop"], expect=expect)
    assert verdict(idiom, "bsp", "even", told, [1.0]) == what


def test_the_pages_say_what_the_matrix_shows() -> None:
    old = [path.name for path, text in pages().items() if path.read_text() != text]
    assert not old, "write them again: .venv/bin/python tests/idioms/idiom_page.py"
    assert len(IDIOMS) >= 30


def test_what_is_shown_elsewhere_is() -> None:
    for file, test in (idiom.shown.split("::") for idiom in IDIOMS.values() if idiom.shown):
        assert f"def {test}(" in (ROOT / file).read_text()


def test_the_known_cells_exist() -> None:
    assert {name for name, _, _ in KNOWN} <= set(IDIOMS)
    assert {(policy, shares) for _, policy, shares in KNOWN} <= set(RUN)


@ranks(3, join=False)
def test_after_an_idiom_that_failed_the_next_one_gets_another_group(me: RankContext) -> None:
    meeting, formed, errors = Meeting(me), [], []
    for fails in (False, True, False):
        meeting.begin()
        formed.append(meeting.formed)
        with Told() as told:
            dist.new_group()  # which the idiom leaves to the meeting
            if fails and me.rank == 1:
                raise KeyError("only here")
            dist.all_reduce(torch.ones(1))
        meeting.end(failed=bool(told.error))
        errors.append(told.error)
    assert [bool(error) for error in errors] == [False, True, False]
    assert formed == [1, 1, 2]
    assert list(c10d._world.pg_map) == [dist.group.WORLD]


@ranks(2)
def test_shares_are_refused_where_nobody_waits(me: RankContext) -> None:
    """So the matrix has no such cells."""
    for policy in OWN_PACE:
        for shares in ("static:shares=2/1", "lb-bsp"):
            with pytest.raises(ConfigError, match="has no effect under sync"):
                uneven.Session(sync=policy, balance=shares)
