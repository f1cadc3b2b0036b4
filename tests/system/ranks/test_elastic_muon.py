"""Muon while workers are lost and join: as one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_elastic_ways import check


@pytest.mark.timeout(200)
def test_owners_that_are_lost_before_they_have_sent_their_matrices(tmp_path: Path) -> None:
    """Each step has two exchanges, gradients and matrices, and every tenth one more, of speeds. Worker 2 dies before
    the third step's matrices; 1 before a later one's; 4 joins."""
    check(tmp_path, "muon", ["kill@2:6", "kill@1:14", "door@24"], {0, 3, 4}, epochs=1)
