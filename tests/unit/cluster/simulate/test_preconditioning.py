"""What a preconditioner adds to simulated steps, reckoned by hand, and to plans."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from small_world import Ran, cluster, node

from uneven.cli import main
from uneven.cluster import files
from uneven.cluster.pure.describe.cluster_events import Do, Event
from uneven.cluster.pure.describe.parse import from_toml, to_toml
from uneven.cluster.pure.describe.spec import ClusterSpec, Preconditioning, steady
from uneven.cluster.pure.simulate import RecordedCosts, with_costs
from uneven.cluster.series import SeriesFiles
from uneven.errors import ConfigError
from uneven.policy.ownership.agreed_speeds import OwnWork
from uneven.policy.ownership.placement import Item
from uneven.precondition.pure.describe import described

SMALL = Preconditioning(layers=((2, 1),), refresh_period=2, cost_per_s=24.0, factor_core_s=0.125)
"""Turning its gradient costs 4 · 2 · 1 · 3 = 24, so a second; its decompositions 9 (2³ + 1³) = 81."""


def with_one(one: Preconditioning, spec: ClusterSpec) -> ClusterSpec:
    return replace(spec, preconditioner=one)


def test_steps_turn_gradients_and_every_second_one_refreshes() -> None:
    """A second of computing, half of one for the factors of four samples, one to turn; 81 / 24 s on the one owner."""
    ran = Ran(with_one(SMALL, cluster(node("a"), node("b"))), iterations=4)
    for rank in (0, 1):
        assert ran.ends_s(rank) == pytest.approx([5.875, 8.375, 14.25, 16.75])
    owner, other = (ran.of(rank) for rank in (0, 1))
    assert [step.compute_s for step in owner] == pytest.approx([2.5 + 81 / 48] * 4)  # shared out over both steps
    assert [step.exchange_s for step in owner] == pytest.approx([0.0] * 4)
    assert [step.compute_s for step in other] == pytest.approx([2.5] * 4)
    assert [step.exchange_s for step in other] == pytest.approx([81 / 24, 0.0, 81 / 24, 0.0])
    mine, its = ran.outcome.own
    assert mine[:3] == pytest.approx((0, 1 + 81 / 48, 0.5))
    assert (mine.squares, its.squares) == (2, 0)


def test_factors_count_in_the_steps_that_they_serve() -> None:
    rare = replace(SMALL, factor_period=2, cost_per_s=1e18)
    ran = Ran(with_one(rare, cluster(node("a"), node("b"))), iterations=4)
    assert ran.ends_s(0) == pytest.approx([1.5, 2.5, 4.0, 5.0])
    assert [step.compute_s for step in ran.of(1)] == pytest.approx([1.25] * 4)


def test_bytes_take_their_time_on_links() -> None:
    """Half a square of 4 bytes a number to its owner, both squares; then results of a million bytes to the other."""
    wide = Preconditioning(layers=((500, 500),), refresh_period=2, cost_per_s=1e18, share=0.5)
    line = {"up_bit_per_s": steady(8e6), "down_bit_per_s": steady(8e6)}
    nodes = node("a", **line), node("b", **line)
    ran = Ran(with_one(wide, cluster(*nodes, gradient_bytes=0)), iterations=4)
    assert ran.ends_s(0) == pytest.approx([3.000048, 5.000048, 8.000096, 10.000096])
    assert ran.outcome.own[0].sent_bytes == pytest.approx(1e6 + 24)
    everybody = replace(wide, share=1.0)  # bases instead of results
    ran = Ran(with_one(everybody, cluster(*nodes, gradient_bytes=0)), iterations=4)
    assert ran.ends_s(0) == pytest.approx([1 + 1.000048 + 2.004, 5.004048, 9.008096, 10.008096])
    soap = replace(wide, kind="soap")  # squares are made of the averaged gradients
    assert Ran(with_one(soap, cluster(*nodes, gradient_bytes=0))).ends_s(0)[0] == pytest.approx(2.000048)


def test_owners_follow_the_speeds_that_nodes_have() -> None:
    """The fast one owns most of forty layers, once speeds are known; a slow one that dies is waited for no longer."""
    many = Preconditioning(layers=((100, 100),) * 40, refresh_period=5, cost_per_s=1e9, share=1.0)
    nodes = [node("slow", 0.1, cores=0.1), node("fast", 0.1), node("quick", 0.1)]
    die = Event(do=Do.KILL, node="slow", at_iteration=12)
    ran = Ran(with_one(many, cluster(*nodes, events=(die,))), iterations=20)
    squares = {one.rank: one.squares for one in ran.outcome.own}
    assert squares[1] + squares[2] == 80
    assert len(ran.of(1)) == len(ran.of(2)) == 20
    alive = Ran(with_one(many, cluster(*nodes)), iterations=20).outcome.own
    assert alive[0].squares < min(alive[1].squares, alive[2].squares)


def test_one_that_dies_in_its_first_step_has_no_means() -> None:
    wide = Preconditioning(layers=((200, 200),))
    line = {key: steady(1e6) for key in ("up_bit_per_s", "down_bit_per_s")}
    death = Event(do=Do.KILL, node="n2", at_s=14.0)  # its bytes of the first step have been counted
    ran = Ran(with_one(wide, cluster(*(node(f"n{rank}", **line) for rank in range(3)), events=(death,))), iterations=4)
    assert [one.rank for one in ran.outcome.own] == [0, 1]


def test_what_does_not_go_together_is_refused() -> None:
    four = cluster(*(node(name) for name in "abcd"))
    with pytest.raises(ConfigError, match="gradients averaged over all workers in every step"):
        Ran(with_one(SMALL, four), "local:every=2")
    with pytest.raises(ConfigError, match=r"share = 0.75 of 4 workers"):
        Ran(with_one(replace(SMALL, share=0.75), four))
    leaving = cluster(*(node(name) for name in "abcd"), events=(Event(do=Do.LEAVE, node="d", at_s=1.0),))
    with pytest.raises(ConfigError, match=r"share = 0.5 with nodes that come and go: .* give share = 1"):
        Ran(with_one(replace(SMALL, share=0.5), leaving))
    for what, told in (
        ({"layers": ((2,),)}, "a list of pairs"), ({"kind": "sam"}, "kind = 'sam' is none of 'kfac', 'soap', 'muon'"),
        ({"kind": "muon"}, "needs refresh_period = 1 and share = 1"),
        ({"factor_period": 3, "refresh_period": 4}, "a multiple of factor_period"), ({"share": 0.0}, "share = 0.0"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            replace(SMALL, **what)  # type: ignore[arg-type]


def test_what_a_recorded_run_had_is_not_counted_twice() -> None:
    spec = with_one(SMALL, cluster(node("a")))
    cost = spec.nodes[0].cost
    assert cost is not None
    costs = RecordedCosts(name="run", costs=(cost,), exchange_s=(0.0,), deviations=(0.0,), global_batch=4,
                          epoch_samples=4, iterations=4)  # fmt: skip
    assert with_costs(spec, costs)[0].preconditioner == SMALL
    assert with_costs(spec, replace(costs, preconditioned=True))[0].preconditioner is None


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(str(ended.value.code))


def test_a_plan_knows_what_a_described_preconditioner_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, factors = OwnWork(cost=4e9, busy_s=0.2), OwnWork(cost=100.0, busy_s=0.01)
    items = [Item("1", (200, 100), 4.0 * 200 * 100 * 300)]
    text = described("kfac", items, (1, 10), 0.25, "speed", own, factors)
    path = tmp_path / "kfac.toml"
    path.write_text(text)
    one = files.preconditioner(path)
    assert one == Preconditioning(layers=((200, 100),), share=0.25, factor_core_s=1e-4)
    spec = with_one(one, files.load("demo4"))
    assert from_toml(to_toml(spec), "here", SeriesFiles(None)) == spec
    words = ["plan", "demo4", "--balance", "even,lb-bsp", "--sync", "bsp,asp", "--preconditioner", str(path)]
    assert typed(*words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "K-FAC on 1 layers, periods 1 and 10, f = 1/4: it takes at most " in said
    assert typed(*words, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["sync"] for row in found["rows"]} == {"bsp"}
    assert all(len(row["preconditioner"]) == 4 for row in found["rows"])
    assert any("averaged over all workers in every step" in one["why"] for one in found["left_out"])
    words = ["simulate", "demo4", "--no-journal", "--iterations", "20", "--preconditioner", str(path)]
    assert typed(*words) == 0
    assert "owned squares: node0 2" in " ".join(capsys.readouterr().out.split())
    assert typed(*words, "--train", "digits") == 2
    assert "training in virtual time does not support one" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match="are not measured yet"):
        described("kfac", items, (1, 10), 0.25, "speed", OwnWork(), factors)
