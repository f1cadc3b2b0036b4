"""All-reduces as the libraries send them: loads, latencies and single connections."""

from dataclasses import replace

import numpy as np
import pytest

from uneven.cluster.files import load
from uneven.cluster.pure.describe.parse import from_toml, to_toml
from uneven.cluster.pure.describe.spec import ClusterSpec
from uneven.cluster.pure.simulate import Scenario, simulate
from uneven.cluster.pure.simulate.collectives import all_reduce, double_tree
from uneven.cluster.pure.simulate.links import LinkLoad, fair_rates
from uneven.cluster.pure.simulate.routes import Topology
from uneven.errors import ConfigError
from uneven.policy.balance import Even
from uneven.policy.sync import BSP


def described(text: str, workload: str = "") -> ClusterSpec:
    head = 'name = "c"\n' if "name = " not in text.partition("[")[0] else ""
    return from_toml(f"{head}{text}\n[workload]\n{workload}", "test", lambda asked: pytest.fail(f"reads {asked}"))


def machines(count: int, more: str = "", workload: str = "", top: str = "") -> ClusterSpec:
    node = f'[[nodes]]\nname = "n"\ncount = {count}\nup_bit_per_s = 8e9\ndown_bit_per_s = 8e9\ncost = 0.1\n{more}'
    return described(f"{top}\n{node}", f"backward = 0\nframing = 1\ngradient_bytes = 1_000_000_000\n{workload}")


def exchange_s(spec: ClusterSpec, iterations: int = 1) -> float:
    """The seconds of an all-reduce of the whole model, without the computing of 0.1 s."""
    played = simulate(Scenario(spec=spec, balancer=Even(), policy=BSP(), iterations=iterations))
    return played.ended_at_s / iterations - 0.1


@pytest.mark.parametrize("machines", range(1, 18))
def test_both_trees_span_all_machines(machines: int) -> None:
    for parents in double_tree(machines):
        assert parents.count(None) == 1
        for place in range(machines):
            path = [place]
            while (parent := parents[path[-1]]) is not None:
                path.append(parent)
                assert len(path) <= machines.bit_length() + 1
        assert max(parents.count(place) for place in range(machines)) <= 2


def test_the_busiest_machine_of_a_double_tree_sends_the_bytes_twice_and_of_two_machines_once() -> None:
    assert exchange_s(machines(4, workload='all_reduce = "tree"')) == pytest.approx(2.0, rel=0.01)
    assert exchange_s(machines(2, workload='all_reduce = "tree"')) == pytest.approx(1.0, rel=0.01)
    assert exchange_s(machines(4, workload='all_reduce = "ring"')) == pytest.approx(1.5, rel=0.01)
    assert exchange_s(machines(4)) == pytest.approx(1.5, rel=0.01)


def test_gpus_of_a_machine_share_its_link_and_are_neighbors_in_the_ring() -> None:
    one, several = machines(2, workload='all_reduce = "ring"'), machines(2, "gpus = 8", 'all_reduce = "ring"')
    assert [node.name for node in several.nodes][7:9] == ["n0-7", "n1-0"]
    assert exchange_s(one) == pytest.approx(1.0, rel=0.01)
    assert exchange_s(several) == pytest.approx(2 * 15 / 16, rel=0.01)
    assert exchange_s(machines(2, "gpus = 8\ninside_bit_per_s = 4e9", 'all_reduce = "ring"')) == pytest.approx(
        4 * 15 / 16, rel=0.01
    )
    assert from_toml(to_toml(several), "again", lambda asked: pytest.fail(str(asked))) == several


def test_the_latency_of_a_ring_grows_with_its_members_and_of_a_tree_with_their_logarithm() -> None:
    ring, tree = (machines(512, workload=f'all_reduce = "{kind}"') for kind in ("ring", "tree"))
    found = {kind: all_reduce(Topology(spec), spec.workload, range(512), 1.0).latency_s for kind, spec in
             (("ring", ring), ("tree", tree))}  # fmt: skip
    assert found["ring"] == pytest.approx(2 * 511 * 14e-6, rel=0.01)
    assert found["tree"] == pytest.approx(2 * 9 * 28e-6, rel=0.15)


def test_a_far_line_is_as_fast_as_the_window_allows() -> None:
    far = machines(2, "latency_s = 0.05", 'all_reduce = "ring"\nbucket_bytes = 1_000_000_000')
    assert exchange_s(far) == pytest.approx(1e9 / ((4 << 20) / 0.2), rel=0.02)


def test_an_achieved_part_is_payload() -> None:
    assert exchange_s(machines(4, "achieved = 0.5")) == pytest.approx(3.0, rel=0.01)
    spec = machines(4, "achieved = 0.5")
    framed = replace(spec, workload=replace(spec.workload, framing=1.2))
    assert exchange_s(framed) == pytest.approx(3.0, rel=0.01)


def test_a_connection_limits_a_ring_and_several_add_up() -> None:
    assert exchange_s(machines(4, "flow_bit_per_s = 2e9")) == pytest.approx(6.0, rel=0.01)
    assert exchange_s(machines(4, "flow_bit_per_s = 2e9", "flows = 3")) == pytest.approx(2.0, rel=0.01)
    assert exchange_s(machines(4, "flow_bit_per_s = 2e9", "flows = 9")) == pytest.approx(1.5, rel=0.01)


def test_a_kind_of_network_has_defaults_and_own_values_win() -> None:
    node = machines(1, 'network = "cloud"').nodes[0]
    assert node.carried == (0.745, 0.745 * 5e9)
    assert machines(1, 'network = "cloud"\nachieved = 0.9').nodes[0].carried == (0.9, 0.745 * 5e9)
    assert machines(1).nodes[0].carried == (None, None)


def test_a_switch_limits_what_its_nodes_send_together() -> None:
    assert exchange_s(machines(4, top="switch_bit_per_s = 16e9")) == pytest.approx(3.0, rel=0.01)


def test_numbers_on_the_links_can_be_shorter() -> None:
    assert exchange_s(machines(4, workload="number_bytes = 1")) == pytest.approx(1.5 / 4, rel=0.01)


def test_an_exchange_takes_its_own_time_and_the_first_one_its_set_up() -> None:
    spec = machines(4, workload="exchange_s = 0.25\nsetup_s = 1")
    assert exchange_s(spec) == pytest.approx(1.5 + 0.25 + 1, rel=0.01)
    assert exchange_s(spec, 2) == pytest.approx(1.5 + 0.25 + 0.5, rel=0.01)


def test_rates_respect_the_limit_of_a_connection_and_give_the_rest_to_others() -> None:
    loads = [LinkLoad({0: 1.0}, 2.0), LinkLoad({0: 1.0})]
    assert fair_rates(loads, np.array([10.0])) == [2.0, 8.0]
    assert fair_rates([LinkLoad({0: 2.0}, 2.0)], np.array([10.0])) == [4.0]


def test_a_cluster_without_new_keys_is_as_before() -> None:
    spec = load("demo4")
    assert Topology(spec).free
    with pytest.raises(ConfigError, match="achieved = 0"):
        machines(1, "achieved = 0")
