"""The bench of recorded video on a stream of colours: what methods return is right, what they cost is what they did."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from uneven.errors import DataError, UnknownNameError
from uneven.focus import LadderRung, Sprites, Truth
from uneven_bench.focus import baselines
from uneven_bench.focus.baselines import Sure, Targets, furthest_first, sure
from uneven_bench.focus.bench import run
from uneven_bench.focus.compared import compared
from uneven_bench.focus.scenes import Scene
from uneven_bench.focus.seen import SceneSeen, look_through
from uneven_bench.focus.truth import Expensive, TruthLesson, kept, quality

pytest.importorskip("av")
PALETTE = np.array([[220, 30, 30], [30, 200, 30], [30, 30, 220]])


class Colours(torch.nn.Module):
    classes = ("red", "green", "blue")

    def __init__(self) -> None:
        super().__init__()
        self.palette = torch.nn.Parameter(torch.tensor(PALETTE / 255, dtype=torch.float32))
        self.slow = torch.nn.Conv2d(3, 256, 7, padding=3)

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        return -torch.cdist(crops[:, :, 5:-5, 5:-5].mean((2, 3)), self.palette) + 0 * self.slow(crops).mean()


@pytest.fixture(scope="module")
def scene() -> Scene:
    labels = np.arange(3).repeat(3)
    pictures = PALETTE[labels][:, None, None].repeat(16, 1).repeat(16, 2).astype(np.uint8)
    source = Sprites(pictures=pictures, labels=labels, seconds=400, size=(96, 128), scale=1, name="colours")
    return Scene(source=source, truth=Truth(Colours(), side=16), learn_s=100, check_s=100, quality=1.0,
                 ladder=(LadderRung(6, 16),), named=(1000,))  # fmt: skip


def test_all_methods_find_what_there_is_and_pay_for_what_they_asked(scene: Scene) -> None:
    found = compared(scene, Targets(0.95, 0.95), lambda what, done: None)
    methods = found["methods"]
    for name in ("ingest-heavy", "query-all"):
        assert all(one["recall"] == one["precision"] == 1.0 for one in methods[name]["classes"].values())
    assert methods["query-all"]["query_s"] > methods["focus"]["query_s"]
    every = methods["query-all"]["classes"]["red"]["calls"]
    for name, method in methods.items():
        for one in method["classes"].values():
            assert one["calls"] <= every, name
            assert one["query_s"] >= one["calls"] * found["call_ms"] / 1e3 * 0.999, name
    assert methods["ingest-heavy"]["ingest_s"] == pytest.approx(found["objects"] * found["call_ms"] / 1e3)
    assert found["pairs"]["asked"] == 3
    assert found["ablation"]["+ skip"]["calls"] <= found["ablation"]["index only"]["calls"]
    assert found["differenced"]["looked"] < found["differenced"]["objects"]


@pytest.fixture(scope="module")
def seen(scene: Scene) -> SceneSeen:
    return look_through(scene)


def test_the_parts_of_a_scene_are_its_frames_in_order(seen: SceneSeen) -> None:
    parts = (seen.learn, seen.check, seen.test)
    assert sum(len(part.objects) for part in parts) == len(seen.whole.objects)
    assert [int(part.frames[0]) // 100 for part in parts] == [0, 1, 2]
    assert all(len(part.small) == len(part.frames) for part in parts)
    asked = seen.memory.asked
    labels, _ = seen.truth.label(seen.test.objects.crops)
    assert (labels == seen.test.seen.label).all()
    assert seen.memory.asked - asked == len(labels)


def test_what_differs_is_looked_at_and_the_rest_repeats_it(seen: SceneSeen) -> None:
    part = seen.test
    for differ in (baselines.ByFrames(), baselines.ByObjects()):
        every, answer = differ.looked_at(part, -1.0)
        assert len(every) == len(part.objects)
        assert set(differ.returned(part, every, answer)) == set(part.frames)
        some, answer = differ.looked_at(part, 40.0)
        assert 0 < len(some) < len(every)
        assert set(differ.returned(part, some, answer)) == set(part.frames)


def test_thresholds_ask_as_little_as_the_targets_allow(seen: SceneSeen) -> None:
    part = seen.check
    right = part.seen.label == 0
    every = np.arange(len(right))
    clear, calls = sure(part, 0, right.astype(float), every, lambda rows: part.seen.frame[rows], Targets())
    assert calls == 0
    accepted, asked = clear.split(right.astype(float))
    assert (accepted == right).all()
    assert not asked.any()
    blind, calls = sure(part, 0, np.zeros(len(right)), every, lambda rows: part.seen.frame[rows], Targets())
    assert blind == Sure(-np.inf, np.inf)
    assert calls == len(right)


def test_representatives_are_spread() -> None:
    feature = np.concatenate([np.zeros((50, 1)), np.arange(5)[:, None] * 10 + 10.0]).astype(np.float32)
    chosen = furthest_first(feature, 8)
    assert set(range(50, 55)) <= set(chosen.tolist())
    assert len(set(chosen.tolist())) == 8


def test_a_truth_network_is_trained_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    labels = np.arange(2).repeat(8)
    crops = (labels[:, None, None, None] * np.full((1, 32, 32, 3), 255)).astype(np.uint8)
    lesson = TruthLesson(crops, labels, np.ones(16))
    told: list[float] = []
    first = kept("two", lambda: Expensive(("dark", "bright"), width=4), lesson, 3, told.append)
    again = kept("two", lambda: Expensive(("dark", "bright"), width=4), lesson, 3, told.append)
    assert len(told) == 3
    assert quality(first, lesson.crops, labels) == quality(again, lesson.crops, labels)
    assert all(torch.equal(one, two) for one, two in zip(first.parameters(), again.parameters(), strict=True))


def test_cases_and_data_that_are_not_there_are_named(monkeypatch) -> None:
    with pytest.raises(UnknownNameError, match="unknown case 'syntetic'"):
        run(True, lambda *_: None, "syntetic")
    monkeypatch.delenv("UNEVEN_DATA", raising=False)
    with pytest.raises(DataError, match="set UNEVEN_DATA"):
        run(True, lambda *_: None, "synthetic")
