"""Idioms of public scripts under all other policies and shares; ``tests/idioms`` has the first cell."""

from __future__ import annotations

import pytest
from idiom_base import IDIOMS
from idiom_runs import COPIED, RUN, STAGED
from test_idioms import FIRST, check_cell


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "shares"), [cell for cell in RUN if cell != FIRST])
def test_the_rest_of_the_matrix(policy: str, shares: str) -> None:
    check_cell(policy, shares)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "shares"), STAGED)
def test_the_matrix_with_copies_in_host_memory(policy: str, shares: str) -> None:
    check_cell(policy, shares, [name + COPIED for name in IDIOMS])
