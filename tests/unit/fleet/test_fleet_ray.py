"""The Ray engine: the same as on one machine, whoever dies; and what it refuses. One cluster for all of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fleet_members as members
import search_functions
import uneven.fleet as fleet
from fleet_members import same
from fleet_ray_members import RATES, asked, options
from ray_world import program
from uneven import search
from uneven.errors import ConfigError, UnknownNameError
from uneven.fleet.engine import state as engine_state
from uneven.fleet.engine.run import run
from uneven.jobs.devices import devices_of_cluster

TESTS = Path(members.__file__).parent


def newest(directory: Path, name: str) -> dict[str, Any]:
    """Everything of a member but how long it took."""
    folder = engine_state.folders(directory, ["pair", "small", "wide", "late-a", "late-b", "team"])[name]
    saved: dict[str, Any] = torch.load(max(folder.glob("*.pt")), weights_only=True)
    saved["history"] = [(one["train_loss"], one["metric"], one["samples"]) for one in saved["history"]]
    return saved


@pytest.mark.slow(45)
@pytest.mark.timeout(800)  # one for Ray and for all who import torch; several on a busy machine
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra: pip install 'uneven[ray]'")
def test_a_cluster_trains_what_one_machine_does_and_outlives_a_node(tmp_path: Path) -> None:
    with program(TESTS / "fleet_ray_world.py", tmp_path) as played:
        here = run(asked(), 2, tmp_path / "here", options(), lambda moment: None)
        found = played()

    alone = search.run(
        search_functions.climbs, {"rate": search.log(1e-3, 0.3)}, metric="loss", mode="min", trials=3, max_t=3,
        devices=1, directory=tmp_path / "search alone", progress=False,
    )  # fmt: skip
    assert found["searched"] == sorted([row.number, row.metric, row.t, row.status] for row in alone.rows)  # to the bit

    said = found["refusals"]
    assert "3 CPU slots were asked for, and the cluster has 2" in said["many"]
    assert "Ray chooses which devices" in said["names"]
    assert "1 GPUs were asked for, and the cluster has 0" in said["gpus"]
    assert "a device of engine='ray' trains one member at a time" in said["together"]
    assert "is not the same directory on the machine" in said["storage"]
    assert "a machine's object store has" in said["buffer"]

    # The same plan until the node is lost; then who was there goes on, with its second epoch, on the one that is left.
    trained = found["trained"]
    assert trained["killed"] == 1
    assert trained["struck"] == ["late-a", "late-b"]
    assert [[first, running] for first, running in here.plan] == trained["plan"][:3]
    [[passes, back]] = trained["plan"][3:]
    assert (passes, list(back.values())) == (6, [1])
    [set_back] = back
    assert set_back in ("late-a", "late-b")
    assert trained["told"].pop("team") == ["failed", 0, 0]
    assert trained["why"] == "needs 2 devices; left: 1"
    assert trained["told"] == {name: ["trained", 2, 0] for name in RATES}  # nobody twice, nobody too little

    # To the bit the same as on one machine: samples lost or doubled with the preprocessor would be seen. Who was set
    # back has seen other orders, for its second epoch came a pass later.
    equal = {name: same(newest(tmp_path / "here", name), newest(tmp_path / "there", name)) for name in RATES}
    assert equal == {name: name != set_back for name in RATES}

    # The second of two chunks is there, the first is asked for; the engine hears once that it has to be made again.
    lost = {"batch": [2, 3, 4, 5], "asked": ["missing", 0, 1], "heard": [True, False], "found": [1]}
    assert trained["chunk"] == lost


def test_what_is_asked_of_a_cluster() -> None:
    assert devices_of_cluster("auto", {"CPU": 6.0}) == ("CPU", 6)
    assert devices_of_cluster("auto", {"CPU": 6.0, "GPU": 2.0}) == ("GPU", 2)
    assert devices_of_cluster(3, {"CPU": 6.0, "GPU": 2.0}) == ("CPU", 3)
    assert devices_of_cluster(["cuda"] * 2, {"CPU": 6.0, "GPU": 2.0}) == ("GPU", 2)
    assert devices_of_cluster(("cpu", "cpu"), {"CPU": 6.0}) == ("CPU", 2)
    for wrong, complaint in (
        (0, "at least one"), ("auto", "at least one"), (7, "and the cluster has 0"), (["cuda", "cpu"], "Ray chooses"),
        ("gpu", "Ray chooses"), ([], "Ray chooses"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=complaint):
            devices_of_cluster(wrong, {})


def test_engines_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="engine 'rai'; did you mean 'ray'"):
        fleet.train(members.ensemble(), directory=tmp_path, engine="rai", progress=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"Ray is not installed: pip install 'uneven\[ray\]'"):
        fleet.train(members.ensemble(), directory=tmp_path, engine="ray", progress=False)
