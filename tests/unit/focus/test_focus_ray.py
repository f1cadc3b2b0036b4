"""Streams on the nodes of a Ray cluster, one of which is lost: its stream goes on elsewhere, and nothing is missing."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from ray_world import program

pytest.importorskip("av")


@pytest.mark.slow(40)
@pytest.mark.timeout(800)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra: pip install 'uneven[ray]'")
def test_the_stream_of_a_lost_node_goes_on_on_another(tmp_path: Path) -> None:
    here = Path(__file__).parent
    with program(here / "focus_ray.py", tmp_path, PYTHONPATH=os.pathsep.join([str(here), *sys.path])) as played:
        found = played()
    assert len(found["moved"]) == 1
    assert found["lost"] == 1
    assert found["same"] == [True, True], "each index is that of an undisturbed ingest"
