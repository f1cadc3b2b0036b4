"""Idioms of public scripts under all other policies and shares; ``tests/idioms`` has a third of the first cell."""

from __future__ import annotations

import pytest
from idiom_base import IDIOMS
from idiom_runs import COPIED, RUN, STAGED
from test_idioms import FIRST, check_cell, often


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "shares"), [cell for cell in RUN if cell != FIRST])
def test_the_rest_of_the_matrix(policy: str, shares: str) -> None:
    check_cell(policy, shares)


@pytest.mark.timeout(300)
def test_the_rest_of_the_first_cell() -> None:
    rare = [name for name in IDIOMS if name not in often()]
    assert len(rare) > 100
    check_cell(*FIRST, rare)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "shares"), STAGED)
def test_the_matrix_with_copies_in_host_memory(policy: str, shares: str) -> None:
    check_cell(policy, shares, [name + COPIED for name in IDIOMS])
