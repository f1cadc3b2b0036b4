"""Idioms of public scripts × policies × shares: the weights of one process, or refused by name."""

from __future__ import annotations

import pytest
from idiom_base import IDIOMS
from idiom_runs import RUN, WAIT_S, expected, play
from known import KNOWN

import uneven
from uneven.errors import ConfigError


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


def test_the_known_cells_exist() -> None:
    assert {name for name, _, _ in KNOWN} <= set(IDIOMS)
    assert {(policy, shares) for _, policy, shares in KNOWN} <= set(RUN)


@pytest.mark.parametrize("policy", ["shadow:ma", "asp"])
def test_shares_are_refused_where_nobody_waits(policy: str) -> None:
    """So the matrix has no such cells."""
    for shares in ("static:shares=4/3/2/1", "lb-bsp"):
        with pytest.raises(ConfigError, match="decides nothing under sync"):
            uneven.Session(sync=policy, balance=shares, timeout_s=WAIT_S)
