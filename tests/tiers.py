"""Marks a case of a test for the second tier."""

from __future__ import annotations

from typing import Any

import pytest


def rest(*values: Any) -> Any:
    """Return a case of ``parametrize`` that ``make test-rest`` runs, since ``make test`` runs another like it."""
    return pytest.param(*values, marks=pytest.mark.rest)
