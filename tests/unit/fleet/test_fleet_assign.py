"""Which devices: the specification's vectors, the two defects of the printed pairing, unequal nodes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uneven.errors import ConfigError
from uneven.fleet.pure.planning.allocate import Flotilla
from uneven.fleet.pure.planning.assign import MOST_ORDERS, assign_devices, cost, device_order, spread


def flotilla(*counts: int) -> Flotilla:
    return Flotilla({f"m{place}": count for place, count in enumerate(counts)})


def grid(devices: int, per_node: int) -> list[range]:
    return [range(start, start + per_node) for start in range(0, devices, per_node)]


@pytest.mark.parametrize(
    ("counts", "best", "worst"),
    [
        ((1, 3), 1.3333, 1.3333),
        ((1, 1, 3, 3), 2.6667, 3.0),
        ((2, 2), 1.0, 1.0),
        ((4, 1, 3), 1.5833, 1.8333),
        ((5, 3), 0.7333, 0.7333),
        ((6, 1, 1), 2.3333, 2.3333),
    ],
)
def test_the_best_contiguous_cost_is_found(counts: tuple[int, ...], best: float, worst: float) -> None:
    every = [cost(order, 4) for order in itertools.permutations(counts)]
    assert (min(every), max(every)) == pytest.approx((best, worst), abs=5e-5)
    for order in set(itertools.permutations(counts)):
        nodes = grid(-(-sum(counts) // 4) * 4, 4)
        assert spread(assign_devices(flotilla(*order), nodes), nodes) == pytest.approx(best, abs=5e-5)


def test_the_example_of_the_slides() -> None:
    found = assign_devices(Flotilla({"D1": 1, "D4": 3}), nodes=((1, 2), (3, 4)))
    assert sorted(map(len, found.values())) == [1, 3]
    assert spread(found, ((1, 2), (3, 4))) == pytest.approx(2 / 3 + 1)


def test_a_partner_is_found_under_its_own_remainder_and_twins_do_not_hide_each_other() -> None:
    order = device_order(flotilla(1, 1, 3, 3), 4)
    pairs = [set(order[:2]), set(order[2:])]
    assert all({"m0", "m1"} & pair and {"m2", "m3"} & pair for pair in pairs)
    assert device_order(flotilla(3, 4, 5), 4)[0] == "m1"  # whole nodes come first


def test_many_that_do_not_pair_are_dealt_without_trying_all_orders() -> None:
    many = flotilla(*[1] * 40)  # 40! orders
    found = assign_devices(many, grid(40, 4))
    assert sorted(device for one in found.values() for device in one) == list(range(40))
    assert MOST_ORDERS == 1024


def test_the_first_orders_of_many_are_those_of_the_last_seven() -> None:
    counts = (1, 2, 1, 2, 5, 2, 1, 2, 1)
    assert not any((one + two) % 8 == 0 for one, two in itertools.combinations(counts, 2))  # nobody pairs
    members = flotilla(*counts)
    found = [members.members[name] for name in device_order(members, 8)]
    first = itertools.islice(itertools.permutations(counts), MOST_ORDERS)
    assert cost(found, 8) == pytest.approx(min(cost(one, 8) for one in first))
    assert found[:2] == [1, 2]


def test_many_that_do_not_pair_are_packed_where_that_costs_less() -> None:
    members, nodes = flotilla(2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1), grid(16, 4)
    dealt = spread(assign_devices(members, nodes), nodes)
    assert dealt == pytest.approx(5 / 2 + 6)  # nobody reaches over an edge
    contiguous = cost([members.members[name] for name in device_order(members, 4)], 4)
    assert contiguous >= dealt


def test_nodes_of_different_sizes_hold_whole_members_where_they_fit() -> None:
    found = assign_devices(flotilla(1, 3, 2), nodes=((7,), (0, 1, 2, 3), (), (4, 5)))
    assert found == {"m0": (7,), "m1": (0, 1, 2), "m2": (4, 5)}
    wide = assign_devices(flotilla(4), nodes=((0, 1), (2, 3, 4)))
    assert wide == {"m0": (2, 3, 4, 0)}


def test_too_few_devices_or_the_same_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="for 3 devices does not fit 2"):
        assign_devices(flotilla(1, 2), nodes=((0, 1),))
    with pytest.raises(ConfigError, match="device occurs twice"):
        assign_devices(flotilla(1), nodes=((0, 1), (1, 2)))
    assert assign_devices(Flotilla(), nodes=((0, 1),)) == {}


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20),
)
def test_everybody_gets_as_many_as_planned_and_nobody_the_same(counts: list[int], sizes: list[int]) -> None:
    edges = list(itertools.accumulate(sizes, initial=0))
    nodes = [range(*edge) for edge in itertools.pairwise(edges)]
    wanted = flotilla(*counts)
    if wanted.devices > edges[-1]:
        with pytest.raises(ConfigError, match="does not fit"):
            assign_devices(wanted, nodes)
        return
    found = assign_devices(wanted, nodes)
    assert {name: len(devices) for name, devices in found.items()} == dict(wanted.members)
    dealt = [device for devices in found.values() for device in devices]
    assert len(set(dealt)) == len(dealt)
    assert set(dealt) <= set(range(edges[-1]))
