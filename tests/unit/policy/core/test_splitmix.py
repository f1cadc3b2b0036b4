"""``splitmix64`` draws published numbers, and what runs have saved by it stays the same bit for bit."""

from __future__ import annotations

import numpy as np

from uneven.embedding.pure.dynamic_ids import begin_by_id, bucket
from uneven.graph.pure.edge_list import EdgeList, chance
from uneven.policy.core.exact import splitmix64
from uneven.policy.samples.keyed_order import KeyedDraws, KeyedOrder

IDS = np.array([0, 1, -1, 2**62, -(2**63), 1234567])
BUCKETS = [771, 523, 251, 30, 384, 275]
ROWS = [[-0.07957357168197632, -0.08662116527557373], [0.021361112594604492, -0.3706548810005188]]
EDGES = 4096696650785288086, [0.8833108082136426, 0.5665615751722809]
ORDER = [4280, 69115, 43956, 1347, 66904]
DRAWS = [2364, 437, 8924, 9346, 3765]


def test_it_draws_the_published_numbers() -> None:
    """Those of java.util.SplittableRandom's generator with the seed 1234567, as Rosetta Code lists them."""
    drawn = [int(splitmix64(np.array([1234567]), draw)[0]) for draw in range(1, 6)]
    assert drawn == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip


def test_signed_keys_are_their_bits_and_keep_their_shape() -> None:
    table = IDS.reshape(2, 3)
    before = table.copy()
    assert (splitmix64(table) == splitmix64(IDS.view(np.uint64)).reshape(2, 3)).all()
    assert (table == before).all()
    assert splitmix64(np.zeros(1, np.int32), 0).tolist() == [0]


def test_what_runs_have_saved_by_it_stays() -> None:
    """Rows of tables, cuts of graphs and orders of samples are the same in every version."""
    edges = EdgeList(np.array([0, 5, 7], np.int32), np.array([1, 2, 3], np.int32), 9)
    assert bucket(IDS, 1000).tolist() == BUCKETS
    assert begin_by_id(IDS[:2], 5, 2, (-0.5, 0.5)).tolist() == ROWS
    assert (edges.fingerprint(), chance(IDS[:2].view(np.uint64)).tolist()) == EDGES
    assert KeyedOrder(length=100_003, seed=3, epoch=2)[:5].tolist() == ORDER
    assert KeyedDraws(length=9, samples=12_345, seed=3, epoch=2)[:5].tolist() == DRAWS
