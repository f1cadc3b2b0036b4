"""Gradient accumulation, unused parameters and sums of one's own, while workers are lost and join: as one process."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import elastic_more
import elastic_script
import pytest
import test_elastic
import torch
import torch.nn.functional as F
from test_elastic import HERE, await_door, free_port, run

import uneven
from tiers import rest
from uneven import journal
from uneven.policy.core.records import StepRecord
from uneven.testing.callbacks import alone

pytestmark = pytest.mark.timeout(200)

Batch = tuple[int, int, int, int]
"""Exchange, epoch, iteration, samples of the whole batch."""


def steps(folder: Path) -> dict[int, dict[Batch, list[int]]]:
    """Exchange → each of its batches, and the samples of all workers in it."""
    found: dict[int, dict[Batch, list[int]]] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            exchange, epoch, iteration, size, ids = json.loads(line)
            found.setdefault(exchange, {}).setdefault((exchange, epoch, iteration, size), []).extend(ids)
    return dict(sorted(found.items()))


def check_samples(those: dict[int, dict[Batch, list[int]]], epochs: int) -> None:
    for epoch in range(epochs):
        batches = [ids for step in those.values() for key, ids in step.items() if key[1] == epoch]
        used = Counter(one for ids in batches for one in ids)
        assert sorted(used) == list(range(elastic_script.N)), "samples were lost"
        assert set(used.values()) == {1}, "samples were used twice"


def check_steps(those: dict[int, dict[Batch, list[int]]], folder: Path) -> None:
    """Every step was made once, and the journal says how many samples were in it."""
    found = {key[2]: len(ids) for step in those.values() for key, ids in step.items()}
    assert list(found) == list(range(elastic_more.STEPS))
    records = [one for one in journal.read(folder / "run").records() if isinstance(one, StepRecord) and one.rank == 0]
    assert {one.iteration: one.global_batch for one in records} == found


def of_part(folder: Path) -> dict[int, list[int]]:
    """Exchange of gradients → samples that are in the part's sum after it."""
    found: dict[int, list[int]] = {}
    for path in folder.glob("*.part"):
        for line in path.read_text().splitlines():
            exchange, ids = json.loads(line)
            found.setdefault(exchange, []).extend(ids)
    return found


def replayed(
    way: str, those: dict[int, dict[Batch, list[int]]], summed: dict[int, list[int]]
) -> dict[str, torch.Tensor]:
    """What one process makes of the same steps: the mean over the samples of each, whatever batches they are in."""
    x, y, ids = elastic_script.dataset().tensors
    model = elastic_more.model(way)
    optimizer = torch.optim.SGD(model.parameters(), lr=elastic_script.LR, momentum=elastic_script.MOMENTUM)
    average = torch.ones(8, dtype=torch.float64)
    for exchange, step in those.items():
        optimizer.zero_grad()
        there = sum(len(mine) / key[3] for key, mine in step.items())
        for key, mine in step.items():
            loss = F.cross_entropy(elastic_more.output(way, model, x[mine], ids[mine]), y[mine], reduction="none")
            if way == "weighted":
                counts = elastic_more.weights(ids[mine])
                loss = (loss * counts).sum() / counts.sum()
            else:
                loss = loss.sum() * len(step) / key[3] / there
            loss.backward()
        if summed:
            average.lerp_(x[summed[exchange]].square().mean(0), 0.1)
            model[0].weight.grad.div_(average.sqrt())
        optimizer.step()
    return model.state_dict()


class LosingKFAC(uneven.KFAC):
    """Leaves out of its factors what was lost with who had summed it up; ``kept`` says which samples are left."""

    kept: torch.Tensor

    def _take(self, layer: Any, seen: torch.Tensor, gradient: torch.Tensor, counts: Any) -> None:
        super()._take(layer, seen[self.kept], gradient[self.kept], (float(self.kept.double().mean()), counts[1]))

    def before(self, step: uneven.Step, due_factors: bool) -> None:
        super().before(step, due_factors)
        self._mass -= self._coefficient * (1.0 - float(self.kept.double().mean()))


def by_worker(folder: Path) -> dict[int, set[int]]:
    """Worker → numbers of the samples that it had, in its one epoch."""
    found: dict[int, set[int]] = {}
    for path in folder.glob("*.jsonl"):
        lines = path.read_text().splitlines()
        found[int(path.stem)] = {one for line in lines for one in json.loads(line)[-1]}
    return found


def preconditioned(
    way: str, those: dict[int, dict[Batch, list[int]]], folder: Path, lost: dict[int, range]
) -> dict[str, torch.Tensor]:
    """What one process makes of the same steps with a preconditioner.

    Args:
        lost: worker → steps whose factors died with it.
    """
    x, y, _ = elastic_script.dataset().tensors
    owners = by_worker(folder)
    model, part = elastic_more.model(way), elastic_more.preconditioner(way, uneven.SOAP, LosingKFAC)
    worker = alone(model, elastic_more.stepping(way, model), part)
    for number, step in enumerate(those.values()):
        samples = [one for ids in step.values() for one in ids]
        gone = set().union(*(owners[one] for one, steps in lost.items() if number in steps))
        part.kept = torch.tensor([one not in gone for one in samples])  # type: ignore[union-attr]
        worker.step(x[samples], y[samples])
    return model.state_dict()


def check(
    folder: Path,
    way: str,
    faults: list[str],
    survivors: set[int],
    epochs: int = 2,
    lost: dict[int, range] | None = None,
    most: int = 4,
) -> None:
    """Four workers, faults, and one that joins: no sample is lost, and the model is one process's."""
    port = free_port()
    script, meeting = [HERE / "elastic_more.py", way, folder, epochs, *faults], f"127.0.0.1:{port}"
    with run(
        "--nproc", 4, "--elastic", f"1:{most}", "--rdzv-endpoint", meeting, "--run-dir", folder / "run", *script
    ) as a:
        await_door(a, folder)
        with run("--join", meeting, "--run-dir", folder / "joined", *script) as b:
            said, said_there = a.communicate(100)[1], b.communicate(100)[1]
    assert (a.returncode, b.returncode) == (0, 0), said + said_there
    assert "worker 4 has joined" in said_there, said_there
    those = steps(folder)
    if way in ("steps", "own"):
        check_steps(those, folder)
    else:
        check_samples(those, epochs)
    if way in elastic_more.PRECONDITIONED:
        one, near = preconditioned(way, those, folder, lost or {}), {"kfac": 1e-12, "soap": 1e-5, "muon": 1e-6}[way]
    else:
        one, near = replayed(way, those, of_part(folder)), 1e-12
    models = {int(path.stem): torch.load(path) for path in folder.glob("*.pt")}
    assert set(models) == survivors
    for name, tensor in models[min(survivors)].items():
        assert all(torch.equal(tensor, other[name]) for other in models.values()), name
        assert (tensor - one[name]).abs().max() < near, name


@pytest.mark.parametrize("way", ["together", rest("unused")])
def test_lost_before_and_after_an_exchange_and_joined(tmp_path: Path, way: str) -> None:
    """Worker 2 dies before an exchange; 1 after one that 0 has not completed; 4 joins."""
    check(tmp_path, way, ["kill@2:3", "after@1:6", "late@0:6", "door@9"], {0, 3, 4})


@pytest.mark.parametrize("door", [9, rest(10)])
def test_a_worker_joins_after_a_step_and_not_between_its_exchanges(tmp_path: Path, door: int) -> None:
    """Otherwise it would lack the gradients that wait, and count the batches of a step from another one on."""
    check(tmp_path, "summed", [f"door@{door}"], {0, 1, 2, 3, 4}, most=5)


@pytest.mark.parametrize("way", ["part", rest("pieces")])
def test_an_exchange_of_a_part_is_that_of_those_who_are_left(tmp_path: Path, way: str) -> None:
    """Exchanges of gradients are even, and the part's odd. Worker 2 dies in the part's; 1 after one that 0 has not
    completed; 3 in one of gradients; 4 joins."""
    check(tmp_path, way, ["kill@2:7", "after@1:13", "late@0:13", "kill@3:20", "door@24"], {0, 4})


@pytest.mark.parametrize(
    ("way", "faults", "survivors", "lost"),
    [
        ("kfac", ["kill@2:9", "after@1:22", "late@0:22", "kill@3:25", "door@29"], {0, 4},
         {2: range(1, 5), 1: range(9, 13)}),
        rest("soap", ["kill@2:11", "kill@3:23", "kill@1:28", "door@34"], {0, 4}, {}),
    ],
)  # fmt: skip
def test_preconditioners_go_on_among_those_who_are_left(
    tmp_path: Path, way: str, faults: list[str], survivors: set[int], lost: dict[int, range]
) -> None:
    """They train as one process on the samples of each step, whichever exchange of a refresh a worker is lost in: of
    speeds (SOAP's 23), of sums (K-FAC's 9), of bases (25; 11), or of gradients (22; 28). Bases are then given out once
    more. Sums of K-FAC's that nobody else had are in nobody's factors, and those of the others count as much more."""
    check(tmp_path, way, faults, survivors, epochs=1, lost=lost)


@pytest.mark.rest
def test_batches_that_count_by_something_else(tmp_path: Path) -> None:
    """Exchanges of counts are even, and those of gradients odd. Worker 2 dies as its count is in what the others divide
    by; 1 after gradients that 0 lacks; 3 before it has given a count; 4 joins."""
    check(tmp_path, "weighted", ["kill@2:7", "after@1:13", "late@0:13", "kill@3:20", "door@24"], {0, 4})


@pytest.mark.rest
def test_a_newcomer_hears_of_the_profiles_of_the_others(tmp_path: Path) -> None:
    """Its balancer decides by them, as those of all others do."""
    check(tmp_path, "profiled", ["kill@2:3", "door@9"], {0, 1, 3, 4})
    said = {path.stem: path.read_text() for path in tmp_path.glob("*.profile")}
    assert set(said) == {"0", "1", "3", "4"}
    assert said["0"].count("Cubic(") == 4, "of those that the run began with"
    assert len(set(said.values())) == 1


@pytest.mark.parametrize("way", ["steps", rest("own")])
def test_a_loop_without_a_loader(tmp_path: Path, way: str) -> None:
    """A step is the mean over who was in it; what a lost worker had drawn does not come again."""
    check(tmp_path, way, ["kill@2:3", "after@1:6", "late@0:6", "door@9"], {0, 3, 4})


def test_a_checkpoint_after_a_loss_resumes_on_any_number(tmp_path: Path) -> None:
    """Also what the dead worker had, which is still to come when it is saved, comes once."""
    saved = tmp_path / "saved"
    saved.mkdir()
    script = [HERE / "elastic_script.py", saved, 2, 0]
    with run("--nproc", 3, "--elastic", "1:3", "--run-dir", saved / "run", *script, "kill@0:31", "save@32") as a:
        said = a.communicate(100)[1]
    assert a.returncode == 0, said
    for workers, options in ((2, []), (4, ["--elastic", "1:4"])):
        folder = tmp_path / str(workers)
        shutil.copytree(saved, folder)
        script = [HERE / "elastic_script.py", folder, 2, 0, "resume"]
        with run("--nproc", workers, *options, "--run-dir", folder / "resumed", *script) as b:
            said = b.communicate(100)[1]
        assert b.returncode == 0, said
        test_elastic.check(folder, 2, set(range(workers)))
