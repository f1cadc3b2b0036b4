"""The devices that an engine may use, and engines that are not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fleet_members as members
import uneven.fleet as fleet
from uneven.errors import ConfigError, UnknownNameError
from uneven.runtime.jobs.devices import devices_of_cluster


def test_what_is_asked_of_a_cluster() -> None:
    assert devices_of_cluster("auto", {"CPU": 6.0}) == ("CPU", 6)
    assert devices_of_cluster("auto", {"CPU": 6.0, "GPU": 2.0}) == ("GPU", 2)
    assert devices_of_cluster(3, {"CPU": 6.0, "GPU": 2.0}) == ("CPU", 3)
    assert devices_of_cluster(["cuda"] * 2, {"CPU": 6.0, "GPU": 2.0}) == ("GPU", 2)
    assert devices_of_cluster(("cpu", "cpu"), {"CPU": 6.0}) == ("CPU", 2)
    for wrong, complaint in (
        (0, "at least one"), ("auto", "at least one"), (7, "but the cluster has 0"), (["cuda", "cpu"], "Ray chooses"),
        ("gpu", "Ray chooses"), ([], "Ray chooses"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=complaint):
            devices_of_cluster(wrong, {})


def test_engines_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="engine 'rai'; did you mean 'ray'"):
        fleet.train(members.ensemble(), directory=tmp_path, engine="rai", progress=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"ray is not installed: pip install '\.\[ray\]'"):
        fleet.train(members.ensemble(), directory=tmp_path, engine="ray", progress=False)
