"""Ids of any size: each has a row of its own, once it has been seen often enough, as long as there is room."""

from __future__ import annotations

import numpy as np
import pytest

from uneven.embedding.pure.dynamic_ids import PINNED, DistinctIds, IdMap, begin_by_id, bucket, load_of


def some(seed: int, many: int, most: int = 1 << 60) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most, many)


def test_every_id_keeps_a_row_of_its_own() -> None:
    ids, held = np.unique(some(0, 5000)), IdMap(6000)
    slots = np.concatenate([held.see(part)[0] for part in np.array_split(ids, 13)])
    assert len(set(slots.tolist())) == len(ids)
    assert slots.min() == 1
    assert (held.find(ids) == slots).all()
    assert (held.find(some(1, 1000)) == 0).all()
    assert (held.see(np.repeat(ids[:50], 2))[0] == np.repeat(slots[:50], 2)).all()
    assert held.counts == {"admitted": len(ids), "waiting": 0, "full": 0}


def test_an_id_gets_a_row_at_its_kth_sighting() -> None:
    held = IdMap(1000, admit=3)
    ids = np.arange(100)
    for sighting in (1, 2, 3):
        slots, made = held.see(ids)
        assert (slots > 0).all() == (len(made) == 100) == (sighting == 3)
    assert (held.see(np.repeat(np.arange(500, 510), 3))[0] > 0).all(), "three times in one batch"
    by_chance = IdMap(2000, admit=0.25)
    assert 150 < (by_chance.see(some(0, 1000))[0] > 0).sum() < 350


def test_ids_that_come_once_get_no_rows_however_many_have_come() -> None:
    held = IdMap(1000, admit=2)
    for batch in range(40):
        held.see(np.arange(1000) + 1000 * batch)
    assert 40_000 > (waiting := held.counts["waiting"]) > 0.8 * 40_000
    for _ in range(2):
        held.see(np.arange(-20, 0))
    assert waiting < held.counts["waiting"] <= waiting + 20, "none waits the second time"
    small = IdMap(4, admit=2)  # a batch has more ids than its sketch has counters
    many = np.arange(100)
    small.see(many)
    small.see(many + 1000)
    waiting = small.counts["waiting"]
    small.see(many)
    assert small.counts["waiting"] == waiting


@pytest.mark.parametrize("evict", ["age", "count"])
def test_what_was_used_least_goes_and_what_is_under_way_stays(evict: str) -> None:
    held = IdMap(100, evict=evict)
    held.see(np.arange(100))
    slots, made = held.see(np.arange(1000, 1010))
    assert (slots == 0).all(), "all were looked up a moment ago"
    assert len(made) == 0
    assert held.counts["full"] == 10
    for _ in range(PINNED):
        held.see(np.arange(50, 100))
    held.held = True
    assert (held.see(np.arange(1000, 1010))[0] == 0).all(), "the rows are being written down"
    held.held = False
    slots, made = held.see(np.arange(1000, 1010))
    assert sorted(slots.tolist()) == sorted(made.tolist())
    assert (slots > 0).all()
    assert held.counts["evicted"] == 10
    assert (held.find(np.arange(50, 100)) > 0).all()
    assert (held.find(np.arange(50)) > 0).sum() == 40
    assert len(set(held.taken().tolist())) == 100


def test_random_batches_leave_the_map_whole() -> None:
    random = np.random.default_rng(3)
    held = IdMap(300, admit=2)
    for _ in range(400):
        ids = random.zipf(1.2, 40) % 5000 * 977
        slots, made = held.see(ids)
        assert (held.find(ids) == slots).all()
        assert (held.ids[slots[slots > 0]] == ids[slots > 0]).all()
        assert set(made.tolist()) <= set(slots.tolist())
        taken = held.taken()
        assert len(taken) <= 300
        assert (held.find(held.ids[taken]) == taken).all()
    assert held.counts["evicted"] > 100


def test_rows_begin_from_the_id_alone_and_parts_are_even() -> None:
    ids = some(0, 4000)
    rows = begin_by_id(ids, 5, 8, (-0.1, 0.1))
    assert (begin_by_id(ids[7:9], 5, 8, (-0.1, 0.1)) == rows[7:9]).all()
    assert abs(rows.mean()) < 0.002
    assert 0.099 < rows.max() <= 0.1
    assert abs(np.corrcoef(rows.T) - np.eye(8)).max() < 0.08
    parts = np.bincount(bucket(ids, 4), minlength=4)
    assert parts.min() > 900


def test_how_many_share_a_row() -> None:
    seen = DistinctIds()
    for _ in range(3):
        seen.add(some(0, 50_000))
    assert seen.many == pytest.approx(50_000, rel=0.02)
    assert load_of(1000, 10) == pytest.approx(100)
    assert load_of(10, 10_000) == pytest.approx(1, rel=1e-3)
