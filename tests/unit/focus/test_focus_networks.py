"""The cheap networks: what ingest runs is what was trained."""

import copy

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize(("crops", "trained"), [(1, 1), (64, 64), (65, 64), (66, 66), (257, 256)])
def test_no_last_batch_holds_a_single_crop(crops: int, trained: int):
    wanted = [Candidate(LadderRung(4, 16), (0,), 1)]
    made = ensemble(wanted, np.zeros((crops, 8, 8, 3), np.uint8), np.zeros(crops, np.int64), epochs=1)
    assert len(made.dataset) == trained
