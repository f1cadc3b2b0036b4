"""Idioms of public scripts × policies × shares: the weights of one process, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from idiom_base import IDIOMS
from idiom_page import PAGE, page
from idiom_runs import RUN, WAIT_S, expected, play
from known import KNOWN

import uneven
from uneven.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "shares"), RUN)
def test_the_matrix(policy: str, shares: str) -> None:
    wrong = play(policy, shares)
    known = {name for name in wrong if (name, policy, shares) in KNOWN}
    news = {name: what for name, what in wrong.items() if what and name not in known}
    mended = [name for name in known if not wrong[name]]
    report = [f"{name}: {what} (expected: {expected(IDIOMS[name], policy, shares)})" for name, what in news.items()]
    report += [f"{name}: in order now, so take it out of KNOWN" for name in mended]
    assert not report, f"{policy}, {shares} shares:\n" + "\n".join(report)


def test_the_page_says_what_the_matrix_shows() -> None:
    assert PAGE.read_text() == page(), "write it anew: .venv/bin/python tests/idioms/idiom_page.py"
    assert len(IDIOMS) >= 30


def test_what_is_shown_elsewhere_is() -> None:
    for file, test in (idiom.shown.split("::") for idiom in IDIOMS.values() if idiom.shown):
        assert f"def {test}(" in (ROOT / file).read_text()


def test_the_known_cells_exist() -> None:
    assert {name for name, _, _ in KNOWN} <= set(IDIOMS)
    assert {(policy, shares) for _, policy, shares in KNOWN} <= set(RUN)


@pytest.mark.parametrize("policy", ["shadow:ma", "asp"])
def test_shares_are_refused_where_nobody_waits(policy: str) -> None:
    """So the matrix has no such cells."""
    for shares in ("static:shares=4/3/2/1", "lb-bsp"):
        with pytest.raises(ConfigError, match="decides nothing under sync"):
            uneven.Session(sync=policy, balance=shares, timeout_s=WAIT_S)
