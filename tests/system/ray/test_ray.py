"""What Ray places: workers of an elastic run, streams, ensembles, searches, Ray Train. Nodes are lost on the way.

One cluster serves all tests, because to start one takes ten seconds of processor time.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import test_elastic
import torch
from fleet_ray_members import RATES, asked, options
from ray_world import program

import search_functions
from fleet_members import same
from uneven import search
from uneven.fleet.engine import fleet_state as engine_state
from uneven.fleet.engine.fleet_run import run

pytest.importorskip("ray")
pytest.importorskip("av")
pytestmark = pytest.mark.timeout(800)  # one for all phases, on a busy machine


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder in which all phases have run, and their results."""
    folder = tmp_path_factory.mktemp("ray")
    with program(Path(__file__).parent / "all_phases.py", folder, PYTHONPATH=os.pathsep.join(sys.path)) as results:
        return folder, results()


def result(played: tuple[Path, dict[str, Any]], phase: str) -> tuple[Path, Any]:
    """The folder and the result of a phase that has not failed."""
    folder, found = played
    if isinstance(found[phase], dict) and "failed" in found[phase]:
        pytest.fail(found[phase]["failed"])
    return folder / phase, found[phase]


def test_another_worker_comes_for_one_that_is_lost_with_its_node(played: tuple[Path, dict[str, Any]]) -> None:
    """Worker 1 is there from the second on, 2 is lost before an exchange, 3 joins: each sample once, one model."""
    folder, found = result(played, "elastic")
    said = found["stderr"]
    assert found["code"] == 0, said
    epochs = max(epoch for epoch, _ in test_elastic.steps(folder)) + 1
    test_elastic.check(folder, epochs, {0, 1, 3})
    changes = [((), (1,)), ((), (2,)), ((2,), ()), ((), (3,))]
    assert test_elastic.noted(folder / "run", 0) == changes
    assert "a worker that Ray had placed is lost" in said, said
    assert "another one comes when Ray has a place for it" in said, said


def test_the_stream_of_a_lost_node_continues_on_another(played: tuple[Path, dict[str, Any]]) -> None:
    _, found = result(played, "focus")
    assert len(found["moved"]) == 1
    assert found["lost"] == 1
    assert found["same"] == [True, True], "each index is that of an undisturbed ingest"


def test_the_example_in_ray_train(played: tuple[Path, dict[str, Any]]) -> None:
    _, printed = result(played, "example")
    accuracies = set(re.findall(r"test accuracy (\d\.\d+)", printed))  # each node forwards what both have logged
    assert len(accuracies) == 1, printed
    assert float(accuracies.pop()) > 0.9, printed


def newest(directory: Path, name: str) -> dict[str, Any]:
    """Everything of a member but how long it took."""
    folder = engine_state.folders(directory, ["pair", "small", "wide", "late-a", "late-b", "team"])[name]
    saved: dict[str, Any] = torch.load(max(folder.glob("*.pt")), weights_only=True)
    saved["history"] = [(one["train_loss"], one["metric"], one["samples"]) for one in saved["history"]]
    return saved


def test_a_cluster_trains_what_one_machine_does_and_outlives_a_node(
    played: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, found = result(played, "fleet")
    here = run(asked(), 2, tmp_path / "here", options(), lambda moment: None)
    alone = search.run(
        search_functions.climbs, {"rate": search.loguniform(1e-3, 0.3)}, metric="loss", mode="min", trials=3, max_t=3,
        devices=1, directory=tmp_path / "search alone", progress=False,
    )  # fmt: skip
    assert found["searched"] == sorted([row.number, row.metric, row.t, row.status] for row in alone.rows)  # to the bit

    said = found["refusals"]
    assert "3 CPU slots requested, but the cluster has 2" in said["many"]
    assert "Ray chooses the devices" in said["names"]
    assert "1 GPUs requested, but the cluster has 0" in said["gpus"]
    assert "engine='ray' trains one member at a time on a device" in said["together"]
    assert "is a different directory on the machine" in said["storage"]
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
    equal = {name: same(newest(tmp_path / "here", name), newest(folder / "there", name)) for name in RATES}
    assert equal == {name: name != set_back for name in RATES}

    # The second of two chunks is there, the first is asked for; the engine hears once that it has to be made again.
    lost = {"batch": [2, 3, 4, 5], "asked": ["missing", 0, 1], "heard": [True, False], "found": [1]}
    assert trained["chunk"] == lost
