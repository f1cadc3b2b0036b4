"""A node of a Ray cluster is lost with a worker of an elastic run: the others go on, and Ray gives another one."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import test_elastic
from test_elastic import HERE

from ray_world import program


@pytest.mark.slow(40)
@pytest.mark.timeout(800)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra: pip install 'uneven[ray]'")
def test_another_worker_comes_for_one_that_is_lost_with_its_node(tmp_path: Path) -> None:
    """Worker 1 is there from the second on, 2 is lost before an exchange, 3 joins: each sample once, one model."""
    with program(HERE / "elastic_ray.py", tmp_path, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path])) as played:
        found = played()
    said = found["said"]
    assert found["code"] == 0, said
    epochs = max(epoch for epoch, _ in test_elastic.steps(tmp_path)) + 1
    test_elastic.check(tmp_path, epochs, {0, 1, 3})
    changes = [((), (1,)), ((), (2,)), ((2,), ()), ((), (3,))]
    assert test_elastic.noted(tmp_path / "run", 0) == changes
    assert "a worker that Ray had placed is lost" in said, said
    assert "another one comes when Ray has a place for it" in said, said
