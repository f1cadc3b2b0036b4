"""Workers at their own pace that are lost, leave and join: what each has given to the others counts, and counts once.

A sample counts as used when the update that holds what was learnt from it has arrived where it is kept for all. What a
worker is lost with before that comes again in the same epoch.
"""

from __future__ import annotations

import json
from pathlib import Path

import elastic_script
import pytest
import torch
from test_elastic import HERE, await_door, free_port, run

from tiers import rest
from uneven.policy.samples.order import epoch_order

pytestmark = pytest.mark.timeout(200)

EPOCHS = 2


class Log:
    """What all workers have written down.

    Attributes:
        given: worker → update → epoch → runs in it.
        arrived: worker → updates that have arrived.
        lost: worker → the last update of it that others have, as these say.
        steps: (epoch, first position) → samples.
        merged: of a merge among all, what came of it.
    """

    def __init__(self, folder: Path) -> None:
        self.given: dict[int, dict[int, dict[str, list[list[int]]]]] = {}
        self.arrived: dict[int, set[int]] = {}
        self.lost: dict[int, int] = {}
        self.merged: dict[int, int] = {}
        self.steps: list[tuple[int, int, int, list[int]]] = []
        digests: list[tuple[int, int, int]] = []
        for path in folder.glob("*.jsonl"):
            worker = int(path.stem)
            given, arrived = self.given.setdefault(worker, {}), self.arrived.setdefault(worker, set())
            for line in path.read_text().splitlines():
                kind, *rest = json.loads(line)
                if kind == "step":
                    self.steps.append((rest[0], rest[1], rest[2], rest[3]))
                elif kind == "gives":
                    if rest[0] in given:  # before evaluations once more, without a step since the last
                        assert rest[0] in arrived, "two updates of one number"
                        assert not rest[1], "two updates of one number, both with samples"
                    given.setdefault(rest[0], rest[1])
                elif kind == "gave":
                    arrived.add(rest[0])
                    digests += [(worker, rest[0], digest) for digest in rest[1:]]
                else:
                    assert self.lost.setdefault(rest[0], rest[1]) == rest[1], "said different things of a lost worker"
        for worker, number, digest in digests:
            # A worker that leaves may be the only one that completes its last merge. The others repeat it without it.
            if number <= self.lost.get(worker, number):
                assert self.merged.setdefault(number, digest) == digest, "replicas have parted"

    def used(self, epoch: int) -> dict[int, list[tuple[int, int]]]:
        """Position → (worker, update) of the updates with it that have arrived; of a lost worker's, the others know."""
        found: dict[int, list[tuple[int, int]]] = {}
        for worker, given in self.given.items():
            for update, runs in given.items():
                if update <= self.lost[worker] if worker in self.lost else update in self.arrived[worker]:
                    for one in (one for run in runs.get(str(epoch), ()) for one in range(*run)):
                        found.setdefault(one, []).append((worker, update))
        return found


def check(folder: Path, epochs: int) -> Log:
    log = Log(folder)
    for epoch in range(epochs):
        used = log.used(epoch)
        assert sorted(used) == list(range(elastic_script.N)), "samples were lost"
        twice = {one: those for one, those in used.items() if len(those) > 1}
        assert not twice, f"samples of epoch {epoch} were used twice: {twice}; {vars(log)}"
    for epoch, first, end, ids in log.steps:
        assert epoch_order(length=elastic_script.N, seed=0, epoch=epoch)[first:end].tolist() == ids
    return log


def lost_joined_and_left(folder: Path, sync: str, servers: int, faults: list[str]) -> Log:
    """Worker 2 dies with an update that it has noted and not sent, 1 with one that has arrived; 4 joins; 3 leaves."""
    port = free_port()
    meeting = f"127.0.0.1:{port}"
    script = [HERE / "elastic_paced.py", sync, folder, EPOCHS, *faults]
    words = ["--elastic", "1:5", "--servers", servers, "--rdzv-endpoint", meeting, "--run-dir", folder / "run"]
    with run("--nproc", 4, *words, *script) as a:
        await_door(a, folder)
        with run("--join", meeting, "--run-dir", folder / "joined", *script) as b:
            said, said_there = a.communicate(100)[1], b.communicate(100)[1]
    assert (a.returncode, b.returncode) == (0, 0), said + said_there
    assert "worker 4 has joined" in said_there, said_there
    assert all(text in said for text in ("worker 3 got a request to leave", "rank 1 ", "rank 2 ")), said
    log = check(folder, EPOCHS)
    assert {1, 2} <= set(log.lost)
    models = {int(path.stem): torch.load(path) for path in folder.glob("*.pt")}
    assert set(models) == {0, 4}
    assert all(torch.equal(models[0][name], models[4][name]) for name in models[0])
    return log


@pytest.mark.parametrize(
    "sync", ["asp", rest("ssp:staleness=2"), "easgd:every=3", rest("backup:spares=1"), "shadow:load=1:easgd",
        rest("shadow:load=1:asp"), "decoupled:every=3"],
)  # fmt: skip
def test_through_a_parameter_server(tmp_path: Path, sync: str) -> None:
    few = sync.startswith(("easgd", "shadow", "decoupled"))
    faults = ["noted@2:1", "gave@1:2", "door@0:1", "leave@3:2"] if few else [
        "noted@2:5", "gave@1:7", "door@0:3", "leave@3:9"]  # fmt: skip
    servers = 1 if sync.startswith("decoupled") else 2  # each would have its own quorum
    lost_joined_and_left(tmp_path, sync, servers, faults)


@pytest.mark.parametrize("sync", ["shadow:load=1:ma", rest("shadow:load=1:easgd:together=true,alpha=0.2")])
def test_merged_beside_the_training(tmp_path: Path, sync: str) -> None:
    """The merge in which 1 dies is complete on 3, and not on 0, which is given it. 0 needs longer to read in the
    store than a merge needs."""
    faults = ["noted@2:1", "gave@1:3", "late@0:3", "door@0:1", "leave@3:5", "far@0"]
    log = lost_joined_and_left(tmp_path, sync, 0, faults)
    assert log.lost[1] == sorted(log.given[1])[3], "others had it"
    assert log.lost[2] < max(log.given[2]), "nobody had it"
    assert {4} < {one for one, given in log.given.items() if any(given.values())}, "the newcomer gave nothing"
    assert log.merged.keys() >= log.arrived[0] | log.arrived[4]
