"""The cheap networks: what ingest runs is what was trained."""

import copy
import io
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from colours import sprites

from uneven.focus.index import OTHER, StreamStore
from uneven.focus.ingest_stream import Ingest, IngestOptions
from uneven.focus.networks import Candidate, LadderRung, ensemble, fused, run
from uneven.focus.truth import as_input


def test_the_network_of_ingest_computes_what_the_trained_one_does():
    crops = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
    torch.manual_seed(0)
    model = Candidate(LadderRung(4, 16), (0, 1, 2), 10).build()
    for _ in range(3):
        model.train()(as_input(crops))  # normalizations that have seen something
    whole = run(model.eval(), crops)
    quick = run(fused(copy.deepcopy(model)), crops)
    for one, other in zip(whole, quick, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_all_outputs_of_a_centroid_are_stored_if_k_is_all_of_them(tmp_path: Path):
    torch.manual_seed(0)
    weights = io.BytesIO()
    torch.save(Candidate(LadderRung(4, 16), tuple(range(9)), 10).build().state_dict(), weights)
    setting = {"removed": 4, "side": 16, "named": list(range(9)), "classes": 10, "threshold": 1.0, "k": 10}
    whole = IngestOptions(detector=lambda pixels: np.array([[0, 0, 16, 16]], np.int32))
    with closing(StreamStore.create(tmp_path / "sprites", setting, weights.getvalue(), side=16)) as store:
        Ingest(store, sprites(1), whole).run()
        found = [store.find(label, label, 1, 10, (0.0, 1.0)) for label in (*range(9), OTHER)]
    assert sorted([(row.id, row.place) for row in rows] for rows in found) == [[(0, place)] for place in range(10)]


@pytest.mark.parametrize(("crops", "trained"), [(1, 1), (64, 64), (65, 64), (66, 66), (257, 256)])
def test_no_last_batch_holds_a_single_crop(crops: int, trained: int):
    wanted = [Candidate(LadderRung(4, 16), (0,), 1)]
    made = ensemble(wanted, np.zeros((crops, 8, 8, 3), np.uint8), np.zeros(crops, np.int64), epochs=1)
    assert len(made.dataset) == trained
