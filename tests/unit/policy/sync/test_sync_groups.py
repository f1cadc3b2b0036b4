"""The groups of DS-Sync: who they connect, how soon, and how far replicas stay apart (its specification's numbers)."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from uneven.policy.core.views import SyncView
from uneven.policy.sync import Digits, Grid, Grouping, RandomGroups, Shuffle, Sites, groupings

Matrix = NDArray[np.float64]


def groups(
    grouping: Grouping, members: tuple[int, ...], turn: int, sites: dict[int, str] | None = None
) -> list[set[int]]:
    view = SyncView(rank=members[0], clock=turn, members=members, sites=sites or {})
    return [set(group) for group in grouping.groups(view, grouping.phase(len(members), turn))]


def mixing(grouping: Grouping, n: int, turn: int, sites: dict[int, str] | None = None) -> Matrix:
    """The matrix of one turn's group means, equally weighted."""
    matrix = np.zeros((n, n))
    for group in groups(grouping, tuple(range(n)), turn, sites):
        matrix[np.ix_(sorted(group), sorted(group))] = 1 / len(group)
    return matrix


ALL = (Grid(), Grid(columns=3), Digits(), Digits(base=3), RandomGroups(), RandomGroups(size=3, seed=4), Sites(inside=2))


@pytest.mark.parametrize("grouping", ALL, ids=repr)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 12, 13, 16, 30])
def test_groups_divide_the_members_and_keep_the_mean(grouping: Grouping, n: int) -> None:
    members = tuple(range(100, 100 + 3 * n, 3))
    sites = {rank: "abc"[place % 3] for place, rank in enumerate(members)}
    for turn in range(8):
        found = groups(grouping, members, turn, sites)
        assert sorted(rank for group in found for rank in group) == list(members)
        matrix = mixing(grouping, n, turn)
        assert matrix.sum(axis=0) == pytest.approx(1)
        assert np.array_equal(matrix, matrix.T)


def test_the_schedule_of_the_authors_code() -> None:
    """N = 4: {0,1},{2,3}, then a pairing across; ours pairs 0 with 2 where theirs pairs 0 with 3."""
    assert groups(Grid(), (0, 1, 2, 3), 0) == [{0, 1}, {2, 3}]
    assert groups(Grid(), (0, 1, 2, 3), 1) == [{0, 2}, {1, 3}]


@pytest.mark.parametrize("n", [4, 6, 9, 12, 16, 20, 30, 100])
def test_two_turns_of_a_full_grid_are_the_exact_mean(n: int) -> None:
    for turn in (0, 1, 7):
        assert mixing(Grid(), n, turn + 1) @ mixing(Grid(), n, turn) == pytest.approx(1 / n)


@pytest.mark.parametrize(("base", "digits"), [(2, 2), (2, 4), (3, 3), (4, 2), (5, 1)])
def test_as_many_turns_as_digits_are_the_exact_mean_and_fewer_are_not(base: int, digits: int) -> None:
    n, grouping = base**digits, Digits(base=base)
    product = np.eye(n)
    for turn in range(digits):
        assert not np.allclose(product, 1 / n)
        assert {len(group) for group in groups(grouping, tuple(range(n)), turn)} == {base}
        product = mixing(grouping, n, turn) @ product
    assert product == pytest.approx(1 / n)
    assert groups(grouping, tuple(range(n)), digits) == groups(grouping, tuple(range(n)), 0)


@pytest.mark.parametrize(
    ("n", "shape"), [(16, (4, 4)), (12, (3, 4)), (10, (2, 5)), (36, (6, 6)), (3, (1, 3)), (2, (1, 2))]
)
def test_the_natural_grid_is_about_square_and_full_where_it_can_be(n: int, shape: tuple[int, int]) -> None:
    rows, columns = groups(Grid(), tuple(range(n)), 0), groups(Grid(), tuple(range(n)), 1)
    assert [len(row) for row in rows] == [shape[1]] * shape[0]
    assert {len(column) for column in columns} == ({shape[0]} if shape[0] > 1 else {n})


@pytest.mark.parametrize("n", [*range(2, 20), 37, 40])
def test_every_grid_connects_everybody_and_no_two_meet_twice(n: int) -> None:
    for columns in (None, *range(2, n)):
        found = [groups(Grid(columns=columns), tuple(range(n)), turn) for turn in (0, 1)]
        assert connected([group for row in found for group in row]) == n
        if found[0] != found[1]:
            assert all(len(row & column) <= 1 for row in found[0] for column in found[1])
        assert all(len(row) <= (columns or n) for row in found[0])


@pytest.mark.parametrize("n", [5, 6, 7, 11, 13, 29])
def test_every_hypercube_connects_everybody(n: int) -> None:
    assert connected([group for turn in range(5) for group in groups(Digits(), tuple(range(n)), turn)]) == n


def connected(edges: list[set[int]]) -> int:
    """How many are connected with the first."""
    reached, more = set(edges[0]), True
    while more:
        more = False
        for group in edges:
            if reached & group and not group <= reached:
                reached |= group
                more = True
    return len(reached)


def test_random_groups_are_drawn_anew_from_seed_and_turn_and_alike_everywhere() -> None:
    members = tuple(range(30))
    drawn = [groups(RandomGroups(size=5, seed=1), members, turn) for turn in range(6)]
    assert drawn == [groups(RandomGroups(size=5, seed=1), members, turn) for turn in range(6)]
    assert all(before != after for before, after in combinations(drawn, 2))
    assert drawn != [groups(RandomGroups(size=5, seed=2), members, turn) for turn in range(6)]
    assert {len(group) for row in drawn for group in row} == {5}
    assert {len(group) for group in groups(RandomGroups(size=4), tuple(range(11)), 0)} == {5, 6}
    all_drawn = [group for turn in range(60) for group in groups(RandomGroups(size=5), members, turn)]
    met = {pair for group in all_drawn for pair in combinations(sorted(group), 2)}
    assert len(met) == 30 * 29 // 2, "sooner or later everybody meets everybody"


def test_random_groups_are_the_same_in_every_version() -> None:
    """Written down once: ranks with different versions of Python must agree."""
    assert groups(RandomGroups(size=2, seed=7), (0, 1, 2, 3, 4, 5), 3) == [{0, 1}, {3, 4}, {2, 5}]


def test_sites_are_crossed_once_in_so_many_turns() -> None:
    members = tuple(range(8))
    sites = {rank: "east" if rank < 4 else "west" for rank in members}
    homes, across = [{0, 1, 2, 3}, {4, 5, 6, 7}], [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    turns = [groups(Sites(inside=3), members, turn, sites) for turn in range(8)]
    assert turns == [homes, homes, homes, across] * 2
    inside, between = mixing(Sites(), 8, 0, sites), mixing(Sites(), 8, 1, sites)
    assert between @ inside == pytest.approx(1 / 8)


def test_sites_of_different_sizes_are_mixed_in_proportion() -> None:
    sites = {0: "a", 1: "a", 2: "a", 3: "a", 4: "b", 5: "b"}
    assert groups(Sites(), tuple(range(6)), 1, sites) == [{0, 2, 4}, {1, 3, 5}]
    assert mixing(Sites(), 6, 1, sites) @ mixing(Sites(), 6, 0, sites) == pytest.approx(1 / 6)
    assert groups(Sites(), tuple(range(6)), 1, {**sites, 1: "c"}) == [{0, 1, 2, 3, 4, 5}], "one member at c: one group"


def spread(grouping: Grouping, n: int, turns: int, sites: dict[int, str] | None = None) -> tuple[float, float]:
    """Mean squared distance to the mean before and after an exchange, when each step adds noise of variance 1.

    Exact for the turns played: the covariance of the replicas is carried along, and averaged over the second half.
    """
    covariance, before, after = np.zeros((n, n)), [], []
    centred = np.eye(n) - 1 / n
    for turn in range(turns):
        covariance = covariance + np.eye(n)
        before.append(np.trace(centred @ covariance) / n)
        matrix = mixing(grouping, n, turn, sites)
        covariance = matrix @ covariance @ matrix.T
        after.append(np.trace(centred @ covariance) / n)
    half = turns // 2
    return float(np.mean(before[half:])), float(np.mean(after[half:]))


@pytest.mark.parametrize(
    ("grouping", "before", "after"),
    [
        (Grid(columns=16), 0.9375, 0.0),
        (Grid(), 1.125, 0.1875),  # 1/m − 1/N
        (Digits(), 1.625, 0.6875),
        (RandomGroups(size=4), 1.18, 0.235),
        (RandomGroups(size=2), 1.77, 0.834),
    ],
    ids=["all", "4 × 4", "hypercube", "random groups of 4", "random pairs"],
)
def test_replicas_stay_as_close_as_the_specification_says(grouping: Grouping, before: float, after: float) -> None:
    turns = 1500 if isinstance(grouping, RandomGroups) else 80
    exact = {} if isinstance(grouping, RandomGroups) else {"abs": 1e-9}
    assert spread(grouping, 16, turns) == pytest.approx((before, after), **(exact or {"rel": 0.02}))


def test_without_shuffling_groups_drift_apart_without_bound() -> None:
    class Static(Grid):
        def phase(self, members: int, turn: int) -> int:
            return 0

    short, long = spread(Static(), 16, 100)[1], spread(Static(), 16, 400)[1]
    assert long > 3.5 * short > 10


def test_a_persistent_straggler_is_not_cured_and_hiccups_are_eased() -> None:
    """The models of the specification, §1.7: time per step with one worker 3 × slower, and with rare hiccups."""
    everybody, grid = Grid(columns=16), Grid()
    slow = np.ones((600, 16))
    slow[:, 5] = 3.0
    assert seconds(grid, slow) == pytest.approx(3.0, abs=0.02)
    hiccups = 1.0 + 5.0 * (np.random.default_rng(8).random((6000, 16)) < 0.02)
    assert seconds(everybody, hiccups) == pytest.approx(2.38, abs=0.1)
    assert seconds(grid, hiccups) == pytest.approx(2.12, abs=0.1)


def seconds(grouping: Grouping, cost_s: Matrix) -> float:
    """Time per step when each group waits for its slowest."""
    now_s = np.zeros(cost_s.shape[1])
    for turn, costs_s in enumerate(cost_s):
        now_s = now_s + costs_s
        for group in groups(grouping, tuple(range(len(now_s))), turn % 2):
            now_s[list(group)] = now_s[list(group)].max()
    return float(now_s.max() / len(cost_s))


def test_the_turn_counts_exchanges_not_steps() -> None:
    """Or with an exchange every second step only one kind of group would ever meet, and groups would drift apart."""
    policy = Shuffle("ma:every=2", "grid")
    met = [policy.plan(SyncView(rank=0, clock=clock, members=(0, 1, 2, 3))).exchanges for clock in range(8)]
    assert [one[0].members if one else () for one in met] == [(), (0, 1), (), (0, 2), (), (0, 1), (), (0, 2)]


def test_who_is_alone_in_its_group_exchanges_nothing() -> None:
    policy = Shuffle("ma", Grid(columns=3))
    plans = [policy.plan(SyncView(rank=2, clock=1, members=(0, 1, 2, 3, 4))).exchanges for _ in range(2)]
    assert plans == [(), ()]


def test_the_names() -> None:
    assert set(groupings) == {"grid", "digits", "random", "sites"}
