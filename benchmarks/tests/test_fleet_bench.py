"""``uneven bench fleet`` on few samples: every method trains everybody, and the figures are there."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection

import pytest
import torch

from uneven.cluster.virtual.datasets import images
from uneven.errors import TrainingError
from uneven_bench.fleet import bench
from uneven_bench.fleet import tensor_socket as fleet_socket
from uneven_bench.fleet.baseline import train_member, trial
from uneven_bench.fleet.cases import BATCH, CASES, WIDTHS, ensemble, member
from uneven_bench.fleet.tensor_socket_child import EpochBatches, Packing, loader, loader_batches, unpack

METHODS = ("baseline", "homogeneous", "sequential", "fleet-g", "together")
"""Those that differ in how they are carried; the others are these with other options."""


@pytest.mark.timeout(300)  # it starts processes one after another, each of which imports torch
def test_every_method_trains_every_member() -> None:
    said: list[str] = []
    result = bench.measure(
        "digits", lambda phase, state, done: said.append(state), rates={name: [1e3, 1e3] for name in WIDTHS},
        repeats=1, samples=40, epochs=1, cases=("preprocessing-light",), methods=METHODS,
    )  # fmt: skip
    for case in result["cases"].values():
        assert set(case["methods"]) == set(METHODS) <= set(bench.METHODS)
        assert case["speedup_vs_baseline"]["baseline"] == case["speedup_vs_homogeneous"]["homogeneous"] == 1.0
        assert case["preprocess_saving"]["baseline"] == 1.0
        sharing = {name: one["sharing"] for name, one in case["methods"].items()}
        assert sharing["baseline"] == sharing["sequential"] == 1.0
        assert (sharing["homogeneous"], sharing["together"]) == (bench.SLOTS, len(WIDTHS))
        assert case["speedup_vs_ray_tune"] == case["speedup_vs_tensorsocket"] == {}  # not asked for
        for one in case["methods"].values():
            assert one["wall_s"] > 0.0
            assert 0.0 <= one["wait_share"] <= 1.0
            assert 0.0 < one["accuracy"] <= 1.0
            assert set(one["accuracy_by_member"]) == set(WIDTHS)
            assert sum(one["accuracy_by_member"].values()) / len(WIDTHS) == pytest.approx(one["accuracy"])
        rounds = {name: one["rounds"] for name, one in case["methods"].items()}
        assert rounds["baseline"] == rounds["sequential"] == len(WIDTHS)
        assert (rounds["homogeneous"], rounds["together"]) == (len(WIDTHS) / bench.SLOTS, 1)
    assert "preprocessing-light, fleet-g" in said


def test_a_trial_of_ray_tune_trains_its_member() -> None:
    asked = ensemble("digits", "preprocessing-light", ("tiny",), samples=40, epochs=1)
    told = trial({"member": "tiny"}, asked)
    assert 0.0 <= told["accuracy"] <= 1.0
    assert told["cpu_s"] > 0.0
    assert 0.0 <= told["waited_s"] <= told["took_s"]


def test_the_gap_of_a_plan() -> None:
    even = {"a": [100.0, 190.0], "b": [100.0, 190.0]}
    assert bench.plan_gap(even, 100, 2) == pytest.approx(0.0)
    apart = {"a": [100.0, 199.0], "b": [30.0, 59.0]}
    assert bench.plan_gap(apart, 100, 2) >= 0.0


@pytest.mark.parametrize("case", CASES)
def test_augmentation_keeps_the_shape_and_draws_anew(case: str) -> None:
    data = images("digits")
    sample = data.train[0]
    one, other = CASES[case](sample), CASES[case](sample)
    assert one[0].shape == sample[0].shape
    assert one[1] == sample[1]
    assert math.isfinite(float(one[0].sum()))
    drawn = [CASES[case](sample)[0] for _ in range(8)]
    assert any(not drawn[0].equal(each) for each in drawn) or not one[0].equal(other[0])


def test_members_are_unlike() -> None:
    sizes = [sum(p.numel() for p in member(*WIDTHS[name], 8).model.parameters()) for name in WIDTHS]
    assert len(set(sizes)) == len(WIDTHS) >= 6
    asked = ensemble("digits", "preprocessing-light", ("tiny", "large"), samples=40, epochs=1)
    assert (list(asked.members), len(asked.dataset), len(asked.validate)) == (["tiny", "large"], 40, 10)


def test_rivals_that_are_not_installed_are_left_out() -> None:
    left_out = {name for name, (package, _) in bench.RIVALS.items() if find_spec(package) is None}
    assert set(bench.methods_here()) == set(bench.METHODS) - left_out
    assert set(bench.RIVALS) < set(bench.METHODS)


def test_the_seed_decides_what_a_pipeline_of_its_own_learns() -> None:
    def worth(seed: int) -> float:
        asked = ensemble("digits", "preprocessing-light", ("tiny",), samples=64, epochs=1, seed=seed)
        return train_member(dataclasses.replace(asked, validate=images("digits").test), "tiny")["accuracy"]

    assert worth(1) == worth(1) != worth(2)


@pytest.mark.parametrize("samples", [1, 255, 256, 257, 1500])
def test_all_samples_arrive_before_the_last_eight_batches_of_the_loader(samples: int) -> None:
    arrive, needed = loader_batches(samples, 32)
    sent = (needed - 1) // 8 * 8  # a group of eight goes out when there is one batch more
    assert sent == arrive
    assert arrive * 32 >= samples > (arrive - 8) * 32


def test_the_loader_of_the_producer_ends_with_throw_away_samples() -> None:
    asked = ensemble("digits", "preprocessing-light", ("tiny",), samples=70, epochs=2)
    asked = dataclasses.replace(asked, dataset=[(torch.ones(1), number + 1) for number in range(70)], transform=_plus)
    source = loader(asked, workers=1)
    epochs = [torch.cat([labels for _, labels in source]) for _ in range(3)]
    assert [len(labels) for labels in epochs] == [9 * BATCH] * 3
    assert [sorted(labels[:70].tolist()) for labels in epochs[:2]] == [list(range(101, 171))] * 2
    assert not epochs[0].equal(epochs[1])
    assert set(epochs[0][70:].tolist()) == set(epochs[2].tolist()) == {101}  # prepared once; the third epoch: all


def _plus(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    return sample[0], sample[1] + 100


def test_a_batch_is_sent_once_for_all_members() -> None:
    packing, batch = Packing(), (torch.arange(40.0).view(8, 5), torch.arange(8))
    one = len(pickle.dumps([packing(batch)]))
    together = pickle.dumps([packing((batch[0][:], batch[1][:])) for _ in range(6)])
    assert len(together) < 2 * one
    batch[0].mul_(2.0)  # the memory is used again for later batches
    for sent in pickle.loads(pickle.dumps([packing(batch)] * 2)):  # noqa: S301  # our own
        assert all(a.equal(b) for a, b in zip(unpack(sent), batch, strict=True))


class Repeating:
    """A consumer that gives so many batches of 32 every epoch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        numbers = torch.arange(self.batches * BATCH)
        return iter([(part, part) for part in numbers.split(BATCH)])


def test_members_see_no_throw_away_samples_and_notice_lost_ones() -> None:
    ended: list[int] = []
    epochs = EpochBatches(Repeating(8), 70, BATCH, lambda: ended.append(1))
    for _ in range(2):
        assert torch.cat([inputs for inputs, _ in epochs]).tolist() == list(range(70))
    assert len(ended) == 2
    with pytest.raises(TrainingError, match="of an epoch's 8 batches TensorSocket delivered 7"):
        list(EpochBatches(Repeating(7), 70, BATCH, lambda: ended.append(1)))
    with pytest.raises(TrainingError, match="delivered more than 8"):
        list(EpochBatches(Repeating(9), 70, BATCH, lambda: ended.append(1)))
    assert len(ended) == 2


def _dies(connection: Connection) -> None:
    connection.send(("ready",))
    connection.recv()
    os._exit(3)


def _sleeps(connection: Connection) -> None:
    connection.poll(None)


def test_a_dead_or_silent_process_does_not_hang_the_bench() -> None:
    with fleet_socket.Processes(60.0) as processes:
        processes.start("sleeper", _sleeps, ())
        child = processes.start("member tiny", _dies, ())
        assert processes.hear("ready", 1) == [()]
        child.send("die")
        with pytest.raises(TrainingError, match="member tiny died"):
            processes.hear("done", 1)
    with fleet_socket.Processes(0.05) as processes:
        child = processes.start("sleeper", _sleeps, ())
        with pytest.raises(TrainingError, match=r"nothing heard for 0\.05 s"):
            processes.hear("done", 1)
    assert child.process.exitcode is not None


def test_members_train_from_one_producer_of_tensorsocket() -> None:
    pytest.importorskip("tensorsocket")
    asked = ensemble("digits", "preprocessing-light", ("tiny", "middle"), samples=300, epochs=2)
    told = fleet_socket.tensorsocket(asked, 2)
    assert set(told["accuracy"]) == {"tiny", "middle"}
    assert told["preprocess_cpu_s"] > 0.0
    assert 0.0 <= told["wait_share"] <= 1.0
    assert told == told | {"sharing": 2.0, "rounds": 1}
